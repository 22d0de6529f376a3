"""The backend that `auto` stands for."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from torch import nn

from fl.api.method import Pass
from fl.engine.batches import count_steps
from fl.engine.simulation import Simulation
from fl.runner import costs

STEPS = 40_000
"""Steps from which compiling pays: it takes 15 s or more, and saves half a millisecond a step."""

CALLS = 400
"""Calls in a step, up to which it is compiled: that takes longer with their square, for the
gradient of a gradient hours.
"""

LARGE = 1e9
"""Floating-point operations in a step from which stacking saves nothing: it saves calls, and what a
stack reads no longer fits into a processor's cache.
"""


class Choice(NamedTuple):
    """A backend, and why."""

    backend: str
    why: str


def choose(simulation: Simulation, unstackable: str = "") -> Choice:
    """The backend for a run. A rule of its spec and its data, so that it is the same everywhere:

    - `loop` where one client takes part in a round, where something cannot be stacked, and on a CPU
      where a model that is more than plain layers one after another takes 10^9 floating-point
      operations a step;
    - `compiled` where the model is plain layers without a convolution, a client takes at least
      40,000 steps in the whole run, and a step is at most 400 calls;
    - `stacked` otherwise.

    Args:
        unstackable: Why the run's clients cannot be trained at once, found when it was planned.
    """
    if unstackable:
        return Choice("loop", f"clients cannot be stacked: {unstackable}")
    training, everybody = simulation.training, simulation.client_data.participants
    if round(training.participation * len(everybody)) <= 1:
        return Choice("loop", "one client takes part in a round")
    network, steps = simulation.network, training.rounds * steps_a_round(simulation)
    if simulation.by_modality:
        return Choice("stacked", "several modalities")
    if network.is_sequence and network.layers(nn.Conv2d):
        return Choice("stacked", "plain layers with convolutions")
    if network.is_sequence and steps < STEPS:
        return Choice("stacked", f"{steps:,} steps; compiling pays from {STEPS:,} on")
    calls, flops = costs.largest_step(simulation)
    if not network.is_sequence:
        large = simulation.arrays.device.type == "cpu" and flops >= LARGE
        said = f"{flops:.0e} operations in a step of more than plain layers"
        return Choice("loop" if large else "stacked", said)
    if calls > CALLS:
        return Choice("stacked", f"{calls:,} calls in a step; compiling pays up to {CALLS}")
    return Choice("compiled", f"{steps:,} steps of {calls:,} calls on plain layers")


def steps_a_round(simulation: Simulation) -> int:
    """Steps that the client with most samples takes in round 1."""
    passes = [pass_ for pass_ in simulation.method.passes if isinstance(pass_, Pass)]
    return sum(_longest(simulation, pass_) for pass_ in passes)


def _longest(simulation: Simulation, pass_: Pass) -> int:
    """Steps of a pass in round 1, of the client that has most samples."""
    if pass_.sampling.steps:
        return pass_.sampling.steps(1)
    training, data = simulation.training, simulation.client_data
    if pass_.sampling.epochs:
        training = replace(training, local_epochs=pass_.sampling.epochs, local_steps=None)
    sizes = data.sizes("train")[data.participants]
    return int(count_steps(sizes, training).max(initial=0)) * pass_.sampling.steps_per_batch
