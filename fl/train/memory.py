"""Whether a run fits into this machine's memory, and which settings to lower if not."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from fl.api.method import Pass
from fl.base.errors import FedloomError
from fl.engine.simulate import Simulation

REMEDY = (
    "lower batch_size, local_epochs or local_steps, take a smaller model, say `execution: "
    "{backend: loop}`, which has one client's batch in memory at a time, or more memory"
)

LIMIT = Path("/sys/fs/cgroup/memory.max")
"""What a container or a scheduler allows, on Linux."""

PLACE = 18
"""Bytes that each place in a round's batches takes: a sample's number and its weight, twice while
they are put together.
"""
KEY = 8
"""Bytes of a sample's key."""
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
    training, arrays = simulation.training, simulation.arrays
    held, everybody = simulation.held.samples["train"], simulation.held.participants
    most = max((len(held[client]) for client in everybody), default=0)
    phases = simulation.method.phases
    passes = [part for one in phases for part in one.passes if isinstance(part, Pass)]
    epochs = max((part.sampling.epochs or training.local_epochs or 1 for part in passes), default=1)
    steps = training.local_steps or -(-most // training.batch_size) * epochs
    clients = max(1, round(training.participation * len(everybody)))
    drawn = max((refresh.batches for part in passes for refresh in part.refreshes), default=1)
    places = clients * max(steps, drawn) * training.batch_size * PLACE
    batch = training.batch_size * arrays.numbers * FLOAT
    there = size()
    if there is not None and places + batch > there:
        problem = f"a round of {steps:,} steps of {clients} clients with a batch_size of "
        problem += f"{training.batch_size:,} takes more than the {there / 1e9:.1f} GB of memory"
        raise FedloomError(f"{problem} that this machine has; {REMEDY}")
    _check_classes(simulation, there)


def _check_classes(simulation: Simulation, there: int | None) -> None:
    """The same for passes whose batches have all classes, such as a warm-up before round 1."""
    for phase in simulation.method.phases:
        for part in phase.passes:
            if not isinstance(part, Pass) or not part.sampling.per_class or not part.sampling.steps:
                continue
            steps, clients = part.sampling.steps(1), len(simulation.held.participants)
            each = part.sampling.per_class * simulation.classes
            # Beside its place, every sample of every step has a key.
            if there is not None and steps * clients * each * (PLACE + KEY) > there:
                problem = f"{steps:,} steps of {clients} clients with {each:,} images each take "
                problem += f"more than the {there / 1e9:.1f} GB of memory that this machine has"
                remedy = "fewer steps before round 1, or a warm-up as a stage of its own (train_on)"
                raise FedloomError(f"{problem}; allowed: {remedy}, or more memory")


def size() -> int | None:
    """Bytes of memory that this process may use; None where the system does not say."""
    found = []
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit.
        found.append(int(LIMIT.read_text()))
    return min(found, default=None)
