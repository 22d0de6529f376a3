"""The methods that are compared, each with the options under which both programs mean the same."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bench.released_rounds.departures import DEPARTURES
from bench.released_rounds.exchange_comparisons import EXCHANGE_COMPARISONS
from bench.released_rounds.part_comparisons import PART_COMPARISONS
from bench.released_rounds.pfllib import Comparison, leave_clients
from bench.released_rounds.population import LEARNING_RATE
from bench.released_rounds.readers import (
    TRAINING_THEN_SWEEP,
    TWO_PASSES,
    UNIFORM,
    client_model,
    global_model,
    sent_model,
)
from fl.methods.ditto import Ditto
from fl.methods.fedamp import FedAMP
from fl.methods.fedavg import FedAvg
from fl.methods.fedbabu import FedBABU
from fl.methods.fedbn import FedBN
from fl.methods.fedcac import FedCAC
from fl.methods.feddyn import FedDyn
from fl.methods.fedgh import FedGH
from fl.methods.fedlc import FedLC
from fl.methods.fedntd import FedNTD
from fl.methods.fedper import FedPer
from fl.methods.fedprox import FedProx
from fl.methods.fedrep import FedRep
from fl.methods.fml import FML
from fl.methods.lg_fedavg import LGFedAvg
from fl.methods.moon import MOON
from fl.methods.perfedavg import PerFedAvg
from fl.methods.pfedme import PFedMe
from fl.methods.scaffold import Scaffold


def even_then_odd(index: Tensor) -> Tensor:
    """Order a batch so that PFLlib's halves of it are ours, which take every other sample."""
    return torch.cat([index[::2], index[1::2]])


def theta(client: Any) -> nn.Module:
    """Return a client's personal model of pFedMe."""
    model: nn.Module = copy.deepcopy(client.model)
    for parameter, value in zip(model.parameters(), client.personalized_params, strict=True):
        parameter.data = value.data
    return model


COMPARISONS: Mapping[str, Comparison] = {
    "fedavg": Comparison(FedAvg(), "serveravg.FedAvg", shared=global_model),
    "fedprox": Comparison(
        FedProx(mu=0.3), "serverprox.FedProx", options={"mu": 0.3}, shared=global_model
    ),
    "scaffold": Comparison(
        Scaffold(),
        "serverscaffold.SCAFFOLD",
        options={"server_learning_rate": 1.0},
        training=UNIFORM,
        weight=lambda client: 1,
        shared=global_model,
    ),
    "feddyn": Comparison(
        FedDyn(alpha=0.2),
        "serverdyn.FedDyn",
        options={"alpha": 0.2},
        departures=DEPARTURES["feddyn"],
        shared=global_model,
    ),
    "moon": Comparison(
        MOON(mu=2.0),
        "servermoon.MOON",
        options={"mu": 2.0, "tau": 0.5},
        departures=DEPARTURES["moon"],
        shared=global_model,
    ),
    "fedntd": Comparison(
        FedNTD(beta=0.7, tau=3.0),
        "serverntd.FedNTD",
        options={"beta": 0.7, "tau": 3.0},
        training=UNIFORM,
        weight=lambda client: 1,
        shared=global_model,
    ),
    "fedlc": Comparison(
        FedLC(tau=0.5),
        "serverlc.FedLC",
        options={"tau": 0.5},
        departures=DEPARTURES["fedlc"],
        shared=global_model,
    ),
    "perfedavg": Comparison(
        PerFedAvg(alpha=LEARNING_RATE, order="first", statistics="both"),
        "serverperavg.PerAvg",
        options={"batch_size": 4},
        departures=DEPARTURES["perfedavg"],
        arrange=even_then_odd,
        shared=global_model,
    ),
    "ditto": Comparison(
        Ditto(lam=0.3),
        "serverditto.Ditto",
        options={"mu": 0.3},
        shared=global_model,
        personal=lambda client: client.model_per,
    ),
    "pfedme": Comparison(
        PFedMe(lam=2.0, steps=3, inner_lr=0.05, beta=0.8),
        "serverpFedMe.pFedMe",
        options={"lamda": 2.0, "K": 3, "p_learning_rate": 0.05, "beta": 0.8},
        training={"weight_decay": 0.001},
        departures=DEPARTURES["pfedme"],
        repeats=3,
        shared=global_model,
        personal=theta,
        personal_statistics=False,
        finish=leave_clients,
    ),
    "fedamp": Comparison(
        FedAMP(lam=0.1, alpha=0.1, sigma=2.0),
        "serveramp.FedAMP",
        options={"lamda": 0.1, "alphaK": 0.1, "sigma": 2.0, "join_ratio": 1.0},
        training={"participation": 1.0},
        departures=DEPARTURES["fedamp"],
        personal=client_model,
        statistics="local",
        finish=leave_clients,
    ),
    "fedper": Comparison(FedPer(), "serverper.FedPer", personal=client_model),
    "fedrep": Comparison(
        FedRep(head_epochs=2),
        "serverrep.FedRep",
        departures=DEPARTURES["fedrep"],
        calls=(TWO_PASSES,),
        personal=client_model,
    ),
    "lg-fedavg": Comparison(
        LGFedAvg(), "serverlg.LG_FedAvg", personal=client_model, statistics="local"
    ),
    "fedbabu": Comparison(
        FedBABU(), "serverbabu.FedBABU", options={"fine_tuning_epochs": 0}, shared=sent_model
    ),
    "fml": Comparison(
        FML(alpha=0.4, beta=0.7),
        "serverfml.FML",
        options={"alpha": 0.4, "beta": 0.7},
        training=UNIFORM,
        weight=lambda client: 1,
        departures=DEPARTURES["fml"],
        shared=global_model,
        personal=client_model,
        uploaded=lambda client: client.global_model,
    ),
    "fedgh": Comparison(
        FedGH(server_steps=3, server_lr=0.2),
        "servergh.FedGH",
        options={"server_learning_rate": 0.2},
        departures=DEPARTURES["fedgh"],
        calls=TRAINING_THEN_SWEEP,
        personal=client_model,
        statistics="local",
    ),
    "fedbn": Comparison(
        FedBN(),
        "serverbn.FedBN",
        departures=DEPARTURES["fedbn"],
        networks=("CNN",),
        personal=client_model,
        statistics="local",
    ),
    "fedcac": Comparison(
        FedCAC(tau=0.4, beta=2),
        "servercac.FedCAC",
        options={"tau": 0.4, "beta": 2},
        departures=DEPARTURES["fedcac"],
        personal=client_model,
        finish=leave_clients,
    ),
    **PART_COMPARISONS,
    **EXCHANGE_COMPARISONS,
}
"""The comparisons by the name of the method."""
