"""Comparisons of methods that exchange something else than models or means by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.released_rounds.exchange_departures import EXCHANGE_DEPARTURES, EXCHANGE_HARNESS
from bench.released_rounds.loaders import Feed, Loader
from bench.released_rounds.pfllib import Comparison, leave_clients
from bench.released_rounds.population import BATCH, CLASSES, LEARNING_RATE, SEED, SIZES, Trained
from bench.released_rounds.readers import (
    TRAINING_THEN_SWEEP,
    UNIFORM,
    Pairs,
    client_model,
    global_model,
    part_pairs,
)
from fl.api import keyed, rng
from fl.api.method import PERSONAL_PARAMS
from fl.blocks.anchor_exchange import ANCHORS
from fl.blocks.candidate_models import TIES
from fl.blocks.feature_generator import HIDDEN, NOISE
from fl.blocks.keyed_random import keyed_normal
from fl.methods.fedfomo import AFFINITY, FedFomo
from fl.methods.fedgen import GENERATOR, STREAM, FedGen
from fl.methods.fedkd import PROJECTION, FedKD
from fl.methods.fedpcl import PROTOTYPES, FedPCL

GENERATOR_STEPS = 5


def affinities(trained: Trained, server: Any) -> Pairs:
    """Yield FedFomo's sums of gains by other clients' models."""
    is_other = ~torch.eye(len(SIZES), dtype=torch.bool)
    yield trained.state.server[AFFINITY][is_other], server.P[is_other]


def give_validation(server: Any, trained: Trained, feed: Feed) -> None:
    """Give FedFomo's clients their validation samples, and the server our order of equal models."""

    def loaders(client: int) -> tuple[Loader, list[tuple[Tensor, Tensor]]]:
        return feed.loader(client), [feed.validation(client)]

    def best_of(client: int, uploaded: Sequence[int], count: int) -> list[int]:
        key = torch.tensor(rng.torch_seed(SEED, "fedfomo") + feed.round)
        chance = keyed.uniform(keyed.derive_keys(key, 0) + client, TIES, (len(SIZES),)).tolist()
        scores = list(zip(server.P[client].tolist(), chance, strict=True))
        others = (other for other in uploaded if other != client)
        return sorted(others, key=scores.__getitem__, reverse=True)[:count]

    server.best_of = best_of
    for client in server.clients:
        client.load_train_data = partial(loaders, client.id)


class GeneratorDraws:
    """FedGen's labels and noise, of the server's steps and of clients', as ours draws them.

    Args:
        server: PFLlib's server.
        feed: The batches of the run.
    """

    def __init__(self, server: Any, feed: Feed) -> None:
        self.server, self.feed, self.step = server, feed, 0
        self.noise = self.drawn = self.drawn_noise = torch.empty(0)

    def labels_of_server(self) -> Tensor:
        """Return the labels of the server's next step, and keep its noise."""
        if self.step % GENERATOR_STEPS == 0:
            seed = rng.torch_seed(SEED, "fedgen", self.feed.round + 1)
            draws, count = torch.Generator().manual_seed(seed), GENERATOR_STEPS * BATCH
            self.drawn = torch.multinomial(self._counts(), count, True, generator=draws)
            self.drawn_noise = torch.randn(count, NOISE, generator=draws, dtype=torch.float64)
        at = slice((begin := self.step % GENERATOR_STEPS * BATCH), begin + BATCH)
        self.step += 1
        self.noise = self.drawn_noise[at]
        return self.drawn[at]

    def labels_of_client(self) -> Tensor:
        """Return labels for the newest batch, and keep their noise."""
        assert self.feed.keys is not None
        keys = keyed.derive_keys(self.feed.keys, STREAM)
        self.noise = keyed_normal(keys, 1, (NOISE,)).double()
        thresholds = (self._counts() / self._counts().sum()).cumsum(0)[:-1]
        return (keyed.uniform(keys, 0)[:, None].double() >= thresholds).sum(-1)

    def _counts(self) -> Tensor:
        return torch.from_numpy(np.bincount(self.server.qualified_labels, minlength=CLASSES) * 1.0)


def generator_pairs(generator: Mapping[str, Any], model: Any) -> Pairs:
    """Yield the parameters of FedGen's generator, ours and PFLlib's."""
    for name, layer in (("hidden", model.fc1[0]), ("out", model.fc)):
        yield from part_pairs(generator["params"][name], ("weight", "bias"), layer.parameters())


def give_generator(server: Any, trained: Trained, feed: Feed) -> None:
    """Give FedGen's server our first generator, and both sides our labels and noise."""
    draws, model = GeneratorDraws(server, feed), server.generative_model
    for ours, parameter in generator_pairs(trained.start.server[GENERATOR], model):
        parameter.data = ours.clone()
    model.draw = lambda size: draws.noise
    server.labels = draws.labels_of_server
    for client in server.clients:
        client.labels = draws.labels_of_client


def give_projection(server: Any, trained: Trained, feed: Feed) -> None:
    """Give FedKD's clients our first matrix between features."""
    for client in server.clients:
        own = trained.start.client(client.id, torch.device("cpu"))[PERSONAL_PARAMS]
        client.W_h.weight.data = own[PROJECTION].clone()


def projections(trained: Trained, server: Any) -> Pairs:
    """Yield each client's matrix between features."""
    for client in server.clients:
        yield trained.client(client.id)[PERSONAL_PARAMS][PROJECTION], client.W_h.weight


def prototype_sets(trained: Trained, server: Any) -> Pairs:
    """Yield FedPCL's mean prototypes, and those of each client."""
    state = trained.state.server
    sets = zip(state[PROTOTYPES], server.client_protos_set, strict=True)
    for ours, theirs in ((state[ANCHORS], server.global_protos), *sets):
        for label, prototype in (theirs or {}).items():
            # Means of outputs, which one departure makes, have another width; the models differ.
            if prototype.shape == ours[label].shape:
                yield ours[label], prototype


EXCHANGE_COMPARISONS: Mapping[str, Comparison] = {
    "fedfomo": Comparison(
        FedFomo(models=2, epsilon=0.0),
        "serverfomo.FedFomo",
        options={"M": 2, "join_ratio": 0.9},
        training={"participation": 0.9},
        departures=EXCHANGE_DEPARTURES["fedfomo"],
        personal=client_model,
        pairs=affinities,
        statistics="local",
        prepare=give_validation,
        finish=leave_clients,
    ),
    "fedgen": Comparison(
        FedGen(server_steps=GENERATOR_STEPS, server_batch=BATCH, server_lr=0.01),
        "servergen.FedGen",
        options={
            "noise_dim": NOISE,
            "hidden_dim": HIDDEN,
            "server_epochs": GENERATOR_STEPS,
            "generator_learning_rate": 0.01,
            "localize_feature_extractor": False,
        },
        departures=EXCHANGE_DEPARTURES["fedgen"],
        harness=EXCHANGE_HARNESS["fedgen"],
        shared=global_model,
        pairs=lambda trained, server: generator_pairs(
            trained.state.server[GENERATOR], server.generative_model
        ),
        prepare=give_generator,
    ),
    "fedkd": Comparison(
        FedKD(energy_start=0.6, energy_end=0.9),
        "serverkd.FedKD",
        options={"mentee_learning_rate": LEARNING_RATE, "T_start": 0.6, "T_end": 0.9},
        training=UNIFORM,
        weight=lambda client: 1,
        departures=EXCHANGE_DEPARTURES["fedkd"],
        harness=EXCHANGE_HARNESS["fedkd"],
        shared=lambda server: server.clients[0].global_model,
        personal=client_model,
        pairs=projections,
        uploaded=lambda client: client.global_model,
        prepare=give_projection,
    ),
    "fedpcl": Comparison(
        FedPCL(tau=0.5),
        "serverpcl.FedPCL",
        options={"tau": 0.5},
        departures=EXCHANGE_DEPARTURES["fedpcl"],
        calls=TRAINING_THEN_SWEEP,
        personal=client_model,
        pairs=prototype_sets,
        statistics="local",
        finish=leave_clients,
    ),
}
"""The comparisons by the name of the method."""
