"""Comparisons of methods that have parts beside the network's own weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bench.released_rounds.alignment_departures import ALIGNMENT_DEPARTURES, ALIGNMENT_HARNESS
from bench.released_rounds.departures import DEPARTURES
from bench.released_rounds.loaders import Feed, Loader
from bench.released_rounds.part_departures import PART_DEPARTURES, PART_HARNESS
from bench.released_rounds.pfllib import Comparison, leave_clients
from bench.released_rounds.population import Trained
from bench.released_rounds.readers import (
    TRAINING_THEN_SWEEP,
    Pairs,
    client_model,
    global_model,
    model_pairs,
    part_pairs,
)
from fl.api.method import PERSONAL_PARAMS, SHARED_PARAMS
from fl.api.trees import Tree
from fl.blocks.anchor_exchange import ANCHORS
from fl.blocks.sample_shares import SHARES
from fl.methods.apfl import APFL
from fl.methods.apple import APPLE
from fl.methods.fd import FD
from fl.methods.fedala import FedALA
from fl.methods.fedas import FedAS
from fl.methods.fedcp import SELECTOR_STREAM, FedCP
from fl.methods.feddbe import FedDBE
from fl.methods.fedpac import FedPAC
from fl.methods.fedphp import FedPHP
from fl.methods.fedproto import FedProto
from fl.methods.fedrod import FedRoD
from fl.methods.gpfl import GPFL
from fl.pytorch import keyed

LINEAR_AND_NORM = ("weight", "bias", "scale", "shift")
"""Our names of a linear layer and of the normalisation that follows it."""


def personal_heads(trained: Trained, server: Any) -> Pairs:
    """Yield the second head of each client."""
    for client in server.clients:
        ours = trained.client(client.id)[PERSONAL_PARAMS]
        yield ours["weight"], client.head.weight
        yield ours["bias"], client.head.bias


def prototypes(trained: Trained, server: Any) -> Pairs:
    """Yield the shared prototype of each class."""
    for label, prototype in server.global_protos.items():
        yield trained.state.server[ANCHORS][label], prototype


def mixture(client: Any) -> nn.Module:
    """Return a client's personal model of APFL: its own model mixed with the shared one."""
    model: nn.Module = copy.deepcopy(client.model_per)
    for own, shared in zip(model.parameters(), client.model.parameters(), strict=True):
        own.data = client.alpha * own.data + (1 - client.alpha) * shared.data
    return model


def cores(trained: Trained, server: Any) -> Pairs:
    """Yield APPLE's cores, and each client's weights of them."""
    state = trained.state.server
    for client in server.clients:
        core = {name: leaf[client.id] for name, leaf in state["cores"].items()}
        yield from part_pairs(core, trained.variables["params"], client.model_c.parameters())
        offsets = trained.client(client.id)[PERSONAL_PARAMS]["offsets"]
        yield state[SHARES] + offsets, torch.tensor(client.ps, dtype=torch.float64)


def mix_last_cores(server: Any) -> None:
    """Let APPLE's clients mix the last cores, as they do before they train."""
    server.send_models()
    for client in server.clients:
        client.aggregate_parameters()


def shares(trained: Trained, server: Any) -> Pairs:
    """Yield FedALA's shared model, and each client's head and shares of mixing."""
    yield from model_pairs(trained, trained.state.server, server.global_model)
    for client in server.clients:
        ours, names = trained.client(client.id), list(trained.client(client.id)["own"])
        yield from part_pairs(ours["own"], names, client.model.head.parameters())
        if client.ALA.weights is not None:
            yield from part_pairs(ours["shares"], names, client.ALA.weights)


def give_batches(server: Any, trained: Trained, feed: Feed) -> None:
    """Let FedALA's clients learn their shares on the batches of our first or second pass."""

    def batches(client: int, is_first: bool) -> Loader:
        position = (-1, 0 if is_first else 1)
        if feed.round == 0 or not feed.takes_part(client, position):
            return feed.in_order(client)
        return feed.loader_of(client, feed.batches(client, position))

    for client in server.clients:
        client.ALA.batches = partial(batches, client.id)


def feature_means(trained: Trained, server: Any) -> Pairs:
    """Yield FedDBE's shared model, its mean feature, and each client's."""
    yield from model_pairs(trained, trained.state.server, server.global_model)
    for client in server.clients:
        yield trained.state.server["feature_mean"], client.global_mean
        yield trained.client(client.id)[PERSONAL_PARAMS]["bias"], client.client_mean


def layer_pairs(layer: Tree, linear: nn.Linear, norm: nn.LayerNorm) -> Pairs:
    """Yield the parameters of a linear layer and of its normalisation."""
    yield from part_pairs(layer, LINEAR_AND_NORM, [*linear.parameters(), *norm.parameters()])


def selectors(trained: Trained, server: Any) -> Pairs:
    """Yield FedCP's body, shared head and selector, as each client has them, and its own head."""
    params = trained.state.server["params"]
    *body, weight, bias = params
    for client in server.clients:
        model = client.model
        yield from part_pairs(params, body, model.model.base.parameters())
        yield from part_pairs(params, (weight, bias), model.head_g.parameters())
        fc = model.gate.cs.fc
        yield from layer_pairs(trained.state.server[SHARED_PARAMS], fc[0], fc[1])
        own = trained.client(client.id)[PERSONAL_PARAMS]
        yield from part_pairs(own, ("weight", "bias"), model.model.head.parameters())


def give_selector(server: Any, trained: Trained, feed: Feed) -> None:
    """Give FedCP's clients our selector, and our noise while they train."""

    def draw(self: Any, x: Tensor) -> Tensor:
        assert feed.keys is not None
        u = keyed.uniform(feed.keys, SELECTOR_STREAM, (x.shape[-1],)).clamp(1e-12, 1 - 1e-12)
        first = (x[:, 0] - x[:, 1] + (u / (1 - u)).log()).sigmoid()
        return torch.stack([first, 1 - first], 1)

    for client in server.clients:
        selector = client.model.gate.cs
        type(selector).draw = draw
        for ours, parameter in layer_pairs(
            trained.start.server[SHARED_PARAMS], selector.fc[0], selector.fc[1]
        ):
            parameter.data = ours.clone()


def embedding_pairs(shared: Tree, embeddings: Any, conditions: Any) -> Pairs:
    """Yield GPFL's class embeddings and conditional layers."""
    yield shared["embeddings"], embeddings.embedding.weight
    for name in ("gamma", "beta"):
        layers = getattr(conditions, f"Conditional_{name}")
        yield from layer_pairs(shared[name], layers[0], layers[2])


def embeddings(trained: Trained, server: Any) -> Pairs:
    """Yield GPFL's class embeddings and conditional layers of each client."""
    for client in server.clients:
        yield from embedding_pairs(trained.state.server[SHARED_PARAMS], client.GCE, client.CoV)


def give_embeddings(server: Any, trained: Trained, feed: Feed) -> None:
    """Give GPFL's clients our embeddings and conditional layers, as their server would."""
    first = copy.deepcopy(server.clients[0])
    pairs = embedding_pairs(trained.start.server[SHARED_PARAMS], first.GCE, first.CoV)
    for ours, parameter in pairs:
        parameter.data = ours.clone()
    for client in server.clients:
        client.set_GCE(first.GCE)
        client.set_CoV(first.CoV)


PART_COMPARISONS: Mapping[str, Comparison] = {
    "fedrod": Comparison(
        FedRoD(),
        "serverrod.FedROD",
        departures=DEPARTURES["fedrod"],
        shared=global_model,
        pairs=personal_heads,
    ),
    "fedproto": Comparison(
        FedProto(lam=0.5, prototypes="uniform"),
        "serverproto.FedProto",
        options={"lamda": 0.5},
        departures=DEPARTURES["fedproto"],
        calls=TRAINING_THEN_SWEEP,
        personal=client_model,
        pairs=prototypes,
        statistics="local",
        finish=leave_clients,
    ),
    "apfl": Comparison(
        APFL(alpha=0.3),
        "serverapfl.APFL",
        options={"alpha": 0.3},
        departures=PART_DEPARTURES["apfl"],
        shared=global_model,
        personal=mixture,
    ),
    "apple": Comparison(
        APPLE(eta_p=0.02, mu=0.3, until=1.0, decay="cosine"),
        "serverapple.APPLE",
        options={"dr_learning_rate": 0.02, "mu": 0.3, "L": 1.5, "join_ratio": 1.0},
        training={"participation": 1.0},
        departures=PART_DEPARTURES["apple"],
        personal=client_model,
        pairs=cores,
        statistics="local",
        finish=mix_last_cores,
    ),
    "fd": Comparison(
        FD(gamma=0.5),
        "serverfd.FD",
        options={"lamda": 0.5},
        departures=ALIGNMENT_DEPARTURES["fd"],
        calls=TRAINING_THEN_SWEEP,
        personal=client_model,
        statistics="local",
        finish=leave_clients,
    ),
    "fedphp": Comparison(
        FedPHP(lam=0.3, mu=0.6),
        "serverphp.FedPHP",
        options={"lamda": 0.3, "mu": 0.6},
        departures=PART_DEPARTURES["fedphp"],
        harness=PART_HARNESS["fedphp"],
        shared=global_model,
        personal=lambda client: client.model_p,
        finish=leave_clients,
    ),
    "fedala": Comparison(
        FedALA(eta=2.0, start_epochs=2),
        "serverala.FedALA",
        options={"eta": 2.0, "rand_percent": 100, "layer_idx": 2},
        departures=PART_DEPARTURES["fedala"],
        calls=(((-1, 2),),),
        pairs=shares,
        prepare=give_batches,
        finish=leave_clients,
    ),
    "feddbe": Comparison(
        FedDBE(kappa=5.0, mu=0.6),
        "serverdbe.FedDBE",
        options={"kl_weight": 5.0, "momentum": 0.6},
        departures=PART_DEPARTURES["feddbe"],
        first_calls=((), ((0, 0),), ()),
        pairs=feature_means,
    ),
    "fedcp": Comparison(
        FedCP(lam=0.5),
        "servercp.FedCP",
        options={"lamda": 0.5},
        departures=PART_DEPARTURES["fedcp"],
        harness=PART_HARNESS["fedcp"],
        pairs=selectors,
        uploaded=lambda client: client.model.model,
        receivers=lambda client: (client.model.base,),
        prepare=give_selector,
        finish=leave_clients,
    ),
    "gpfl": Comparison(
        GPFL(lam=0.05, mu=0.02),
        "servergpfl.GPFL",
        options={"lamda": 0.05, "mu": 0.02},
        departures=PART_DEPARTURES["gpfl"],
        personal=client_model,
        pairs=embeddings,
        prepare=give_embeddings,
        finish=leave_clients,
    ),
    "fedpac": Comparison(
        FedPAC(lam=0.5, head_lr=None),
        "serverpac.FedPAC",
        options={"lamda": 0.5},
        departures=ALIGNMENT_DEPARTURES["fedpac"],
        harness=ALIGNMENT_HARNESS["fedpac"],
        calls=((), ((-1, 1), (-1, 2)), ()),
        personal=client_model,
    ),
    "fedas": Comparison(
        FedAS(),
        "serveras.FedAS",
        departures=ALIGNMENT_DEPARTURES["fedas"],
        calls=(((-1, 1),), ((-1, 2),)),
        personal=client_model,
        exchange=("send_selected_models", "aggregate_wrt_fisher"),
        weight=lambda client: client.fim_trace_history[-1],
        statistics="sent to participants",
        finish=leave_clients,
    ),
}
"""The comparisons by the name of the method."""
