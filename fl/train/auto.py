"""The backend that `auto` stands for."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from torch import nn

from fl.api.method import Pass
from fl.engine.batches import steps_of
from fl.engine.simulate import Simulation
from fl.train import costs

STEPS = 40_000
"""Steps from which compiling pays: it takes 15 s or more, and saves half a millisecond a step."""

CALLS = 250
"""Operations on tensors in a step, up to which it is compiled: that takes longer with their square,
for the gradient of a gradient hours.
"""


class Choice(NamedTuple):
    """A backend, and why."""

    backend: str
    why: str


def choose(simulation: Simulation, unstackable: str = "") -> Choice:
    """The backend for a run. A rule of its spec and its data, so that it is the same everywhere:

    - `loop` where one client takes part in a round, or where something cannot be stacked;
    - `compiled` where the model is plain layers one after another without a convolution, a client
      takes at least 40,000 steps in the whole run, and a step is at most 250 operations;
    - `stacked` otherwise.

    Args:
        unstackable: Why the run's clients cannot be trained at once, found when it was planned.
    """
    if unstackable:
        return Choice("loop", f"clients cannot be stacked: {unstackable}")
    training, everybody = simulation.training, simulation.held.participants
    if round(training.participation * len(everybody)) <= 1:
        return Choice("loop", "one client takes part in a round")
    network = simulation.network
    if simulation.modals or not network.plain or network.layers(nn.Conv2d):
        return Choice("stacked", "the model has more than plain layers without convolution")
    steps = training.rounds * sum(_longest(simulation, part) for part in _passes(simulation))
    if steps < STEPS:
        return Choice("stacked", f"{steps:,} steps; compiling pays from {STEPS:,} on")
    calls = costs.calls(simulation)
    if calls > CALLS:
        return Choice("stacked", f"{calls:,} operations in a step; compiling pays up to {CALLS}")
    return Choice("compiled", f"{steps:,} steps of {calls:,} operations on plain layers")


def _passes(simulation: Simulation) -> list[Pass]:
    return [part for part in simulation.method.passes if isinstance(part, Pass)]


def _longest(simulation: Simulation, part: Pass) -> int:
    """Steps of a pass in round 1, of the client that has most samples."""
    if part.sampling.steps:
        return part.sampling.steps(1)
    training, held = simulation.training, simulation.held
    if part.sampling.epochs:
        training = replace(training, local_epochs=part.sampling.epochs, local_steps=None)
    sizes = np.array([len(held.samples["train"][client]) for client in held.participants])
    return int(steps_of(sizes, training).max(initial=0)) * part.sampling.repeat
