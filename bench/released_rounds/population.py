"""The clients and networks on which rounds are compared.

Six clients have two to five whole batches each, since PFLlib leaves out an incomplete one. Three of
them are drawn in each round. Client 0 has no sample of class 2. Everything is in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.timing import PLAIN
from fl.api.training import Training
from fl.api.trees import Tree
from fl.base import rng
from fl.engine import engine
from fl.engine.assembly import make_network
from fl.engine.client_data import ClientData, SamplesByClient
from fl.engine.run_setup import MethodComponents, RunSetup
from fl.engine.sample_arrays import Arrays
from fl.engine.simulation import Simulation
from fl.engine.state import RoundSchedule, State
from fl.models.cnn import CNN
from fl.models.mlp import MLP

CLASSES = 4
MISSING_CLASS = 2
BATCH = 8
SIZES = np.array([24, 16, 32, 40, 24, 16])
VALIDATION = 8
"""Number of validation samples of each client; they follow the training samples of all."""
SHAPE = (1, 8, 8)
SEED = 0
LEARNING_RATE = 0.1

TRAINING: Mapping[str, Any] = {
    "rounds": 3,
    "local_epochs": 2,
    "batch_size": BATCH,
    "lr": LEARNING_RATE,
    "participation": 0.5,
    "precision": "float64",
}

NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "MLP": lambda: MLP((12, 10)).build(SHAPE, CLASSES),
    "CNN": lambda: CNN((3, 5)).build(SHAPE, CLASSES),
}
"""Makers of the networks; the CNN has batch normalisation."""


def simulation(method: Any, network: str, **training: Any) -> Simulation:
    """Return the run of a method over the clients.

    Args:
        method: The method, as a component.
        network: A name of `NETWORKS`.
        training: Settings other than `TRAINING`.
    """
    settings = Training(**{**TRAINING, **training})
    made = make_network(NETWORKS[network], settings)
    inputs, labels = samples()
    train, held_out = np.split(np.arange(len(labels)), [SIZES.sum()])
    validation = SamplesByClient(held_out, np.full(len(SIZES), VALIDATION))
    data = ClientData({"train": SamplesByClient(train, SIZES), "val": validation})
    arrays = Arrays(inputs, labels, PLAIN, dtype=torch.float64)
    setup = RunSetup(made, settings, arrays, data, CLASSES)
    return Simulation.of(MethodComponents(method), setup, seed=SEED)


def samples() -> tuple[np.ndarray, np.ndarray]:
    """Return inputs [samples, *SHAPE] with a mean for each class, and labels, client by client.

    Training samples of all clients come first, then their validation samples.
    """
    generator = np.random.default_rng(0)
    labels = generator.integers(0, CLASSES, SIZES.sum())
    first = labels[: SIZES[0]]
    first[first == MISSING_CLASS] = 0
    means = generator.standard_normal((CLASSES, *SHAPE))

    def around_means(classes: np.ndarray) -> np.ndarray:
        return means[classes] + generator.standard_normal((len(classes), *SHAPE))

    inputs, held_out = around_means(labels), generator.integers(0, CLASSES, VALIDATION * len(SIZES))
    return np.concatenate([inputs, around_means(held_out)]), np.concatenate([labels, held_out])


@dataclass(frozen=True)
class Trained:
    """A run of ours that was trained.

    Attributes:
        variables: The network's first variables.
        start: The state before round 1.
        state: The state after the last round.
        schedules: The participants and batches of the rounds.
    """

    variables: Tree
    start: State
    state: State
    schedules: list[RoundSchedule]

    def client(self, number: int) -> Tree:
        """Return the state of a client after the last round."""
        return self.state.client(number, torch.device("cpu"))


def train(run: Simulation) -> Trained:
    """Train all rounds, one client after another."""
    start = state = run.begin()
    schedules = [run.round_schedule(round_) for round_ in range(1, run.training.rounds + 1)]
    for schedule in schedules:
        state, _ = engine.run_round(run.method, state, schedule, "loop")
    variables = run.network.init(rng.torch_seed(run.seed, "init"))
    return Trained(variables, start, state, schedules)
