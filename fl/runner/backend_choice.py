"""The rule by which the backend `auto` chooses another backend."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from torch import nn

from fl.api.method import Pass
from fl.engine.batches import count_steps
from fl.engine.simulation import Simulation
from fl.runner import counting

MIN_COMPILED_STEPS = 40_000
"""Steps of a run from which compiling is worthwhile: it takes 15 s or more, and saves half a
millisecond a step.
"""

MAX_COMPILED_CALLS = 400
"""Largest number of calls in a compiled step: the time of compiling grows with their square, and
takes hours for the gradient of a gradient.
"""

LARGE_STEP_FLOPS = 1e9
"""Floating-point operations in a step from which stacking saves no time: it saves calls, but the
stack no longer fits into the processor's cache.
"""


class Choice(NamedTuple):
    """A backend, and the reason for it."""

    backend: str
    reason: str


def choose(simulation: Simulation, unstackable: str = "") -> Choice:
    """Choose the backend of a run by its spec and data, so that it is the same on all machines.

    - `loop` if one client takes part in a round, if something cannot be stacked, and on a CPU if
      the model is no sequence of plain layers and takes 10^9 floating-point operations a step;
    - `compiled` if the model is a sequence of plain layers without convolutions, a client takes at
      least 40,000 steps in the whole run, and a step has at most 400 calls;
    - `stacked` otherwise.

    Args:
        simulation: The run.
        unstackable: Why the run's clients cannot be stacked, as found by the plan; empty if they
            can.

    Returns:
        The backend and the reason.
    """
    if unstackable:
        return Choice("loop", f"clients cannot be stacked: {unstackable}")
    training, candidates = simulation.training, simulation.client_data.participants
    if training.participants(len(candidates)) == 1:
        return Choice("loop", "one client takes part in a round")
    network, steps = simulation.network, training.rounds * steps_per_round(simulation)
    if simulation.by_modality:
        return Choice("stacked", "several modalities")
    if network.is_sequence and network.layers(nn.Conv2d):
        return Choice("stacked", "plain layers with convolutions")
    if network.is_sequence and steps < MIN_COMPILED_STEPS:
        return Choice(
            "stacked", f"{steps:,} steps; compiling is worthwhile from {MIN_COMPILED_STEPS:,} on"
        )
    calls, flops = counting.largest_step(simulation)
    if not network.is_sequence:
        is_large = simulation.arrays.device.type == "cpu" and flops >= LARGE_STEP_FLOPS
        reason = f"{flops:.0e} operations in a step of more than plain layers"
        return Choice("loop" if is_large else "stacked", reason)
    if calls > MAX_COMPILED_CALLS:
        reason = f"{calls:,} calls in a step; compiling is worthwhile up to {MAX_COMPILED_CALLS}"
        return Choice("stacked", reason)
    return Choice("compiled", f"{steps:,} steps of {calls:,} calls on plain layers")


def steps_per_round(simulation: Simulation) -> int:
    """Return the steps of the client with most samples in round 1."""
    passes = [pass_ for pass_ in simulation.method.passes if isinstance(pass_, Pass)]
    return sum(_steps_of_pass(simulation, pass_) for pass_ in passes)


def _steps_of_pass(simulation: Simulation, pass_: Pass) -> int:
    """Return the steps of a pass in round 1, for the client with most samples."""
    if pass_.sampling.steps:
        return pass_.sampling.steps(1)
    training, data = simulation.training, simulation.client_data
    if pass_.sampling.epochs:
        training = replace(training, local_epochs=pass_.sampling.epochs, local_steps=None)
    sizes = data.sizes("train")[data.participants]
    return int(count_steps(sizes, training).max(initial=0)) * pass_.sampling.steps_per_batch
