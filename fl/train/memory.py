"""Whether a run fits into this machine's memory, and which settings to lower if not."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from fl.api.method import Pass
from fl.base.errors import FedloomError
from fl.engine.batches import steps_of
from fl.engine.simulation import Simulation

REMEDY = (
    "lower batch_size, local_epochs, local_steps or a warm-up's steps, take a smaller model, say "
    "`execution: {backend: loop}`, which has one client's batch in memory at a time, or more memory"
)

LIMIT = Path("/sys/fs/cgroup/memory.max")
"""What a container or a scheduler allows, on Linux."""

PLACE = 18
"""Bytes that each place in a round's batches takes: a sample's number and its weight, twice while
they are put together.
"""

KEY = 8
"""Bytes of a sample's key, which those of every class have."""

FLOAT = 4
"""Bytes of a number."""


def told(error: BaseException) -> str:
    """One line on an error that means that memory ran out."""
    [reason, *_] = str(error).strip().splitlines() or [type(error).__name__]
    return f"memory ran out ({reason}); {REMEDY}"


def check(simulation: Simulation) -> None:
    """Refuse (`FedloomError`) a run that cannot fit, whatever its model.

    What is counted is the plan of a round's batches, and one batch. Without the check the system
    would kill the process without a message.
    """
    there = size()
    for phase in simulation.method.phases:
        for pass_ in phase.passes:
            if there is not None and isinstance(pass_, Pass):
                _check_pass(simulation, pass_, phase.everyone, there)


def _check_pass(simulation: Simulation, pass_: Pass, everyone: bool, there: int) -> None:
    training, people = simulation.training, simulation.client_data.participants
    clients = len(people) if everyone else max(1, round(training.participation * len(people)))
    size, place = training.batch_size, PLACE
    if pass_.sampling.per_class:
        size, place = pass_.sampling.per_class * simulation.classes, PLACE + KEY
    steps = longest(simulation, pass_)
    drawn = max((refresh.batches for refresh in pass_.refreshes), default=1)
    batch = size * simulation.arrays.numbers * FLOAT
    if clients * max(steps, drawn) * size * place + batch > there:
        problem = f"{steps:,} steps of {clients} clients with batches of {size:,} samples take "
        problem += f"more than the {there / 1e9:.1f} GB of memory that this machine has"
        raise FedloomError(f"{problem}; {REMEDY}")


def longest(simulation: Simulation, pass_: Pass) -> int:
    """Steps of a pass in round 1, of the client that has most samples."""
    if pass_.sampling.steps:
        return pass_.sampling.steps(1)
    training, data = simulation.training, simulation.client_data
    if pass_.sampling.epochs:
        training = replace(training, local_epochs=pass_.sampling.epochs, local_steps=None)
    sizes = np.array([len(data.samples["train"][client]) for client in data.participants])
    return int(steps_of(sizes, training).max(initial=0)) * pass_.sampling.repeat


def size() -> int | None:
    """Bytes of memory that this process may use; None where the system does not say."""
    limits = []
    with contextlib.suppress(OSError, ValueError, AttributeError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit.
        limits.append(int(LIMIT.read_text()))
    return min(limits, default=None)
