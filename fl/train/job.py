"""Training the runs of a bundle: finished ones are skipped, unfinished ones are resumed.

Nothing here decides a number (see `fl.engine.simulate`). This module decides which runs are
trained together, from which state, and what happens when one fails. `fl.train.following` goes
through the rounds.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fl.base.errors import DataError
from fl.base.schema import GLOBAL
from fl.engine import backends
from fl.engine.backends import TOGETHER
from fl.engine.simulate import Simulation
from fl.plan.bundle import Bundle
from fl.pytorch.devices import claim
from fl.store import checkpoint
from fl.store.store import Store
from fl.train import memory, programs, simulations
from fl.train.following import follow
from fl.train.leaving import asked_to_leave
from fl.train.record import check_code
from fl.train.runs import Runs
from fl.train.simulations import made
from fl.train.stack import Stack

if TYPE_CHECKING:
    from fl.train.team import Team

logger = logging.getLogger(__name__)


def train_bundle(bundle: Bundle, store: Store, team: Team | None = None) -> list[str]:
    """Train every run that the store lacks. A failing run does not stop the others.

    Args:
        team: The processes that train together, where they are several; this is the first of them.

    Returns:
        A line for each failed run: its id, the seed and the error. Tracebacks go to the log.

    Raises:
        Interrupted: On SIGTERM and on Ctrl-C, after the runs in progress are in a checkpoint.
        KeyboardInterrupt: On a second Ctrl-C, and on the first where nothing has to be saved.
    """
    simulations.settle(bundle, store)
    with asked_to_leave() as leaving, contextlib.ExitStack() as held:
        held.enter_context(programs.apart(Path(bundle.results), bundle.bundle))
        runs, backend = Runs(bundle, leaving), None
        # In one order in all processes, so that no two wait for each other.
        for run, member in sorted(runs.members.items()):
            with runs.failing(run):
                opened = store.open(run, member.keep_weights, leaving.now)
                workspace = held.enter_context(opened)
                if workspace is not None:
                    runs.workspaces[run] = workspace
                    continue
                logger.info("%s: already there", runs.name(run))
                backend = store.record(run)["execution"]["backend"]
        if runs.workspaces:
            size = team.size if team else 1
            with claim(bundle.execution.device, leaving.now, size) as devices:
                _Job(runs, store, backend, team).train(devices)
    return runs.failed


class _Job:
    """A bundle being trained.

    Attributes:
        backend: The backend of the finished runs, as all runs of a bundle should be comparable to
            the bit.
    """

    def __init__(
        self, runs: Runs, store: Store, backend: str | None, team: Team | None = None
    ) -> None:
        self._runs, self._store, self._backend, self._team = runs, store, backend, team

    def train(self, devices: Sequence[torch.device]) -> None:
        """All runs that have a workspace; those with a checkpoint first, in the stack that they
        began in.

        Args:
            devices: Of each process that trains, this one's first.
        """
        device, simulations = devices[0], self._shared(self._simulations(devices[0]), devices)
        left = dict.fromkeys(run for run in self._runs.members if run in self._runs.workspaces)
        for run in list(left):
            if run not in left or run not in simulations:
                continue
            with self._runs.failing(run):
                saved = checkpoint.load_latest(self._runs.workspaces[run].checkpoints)
                if saved is not None:
                    stack = Stack.resume(saved, simulations)
                    self._backend = stack.backend
                    for member in stack.members:
                        left.pop(member, None)
                    self._attempt(stack)
        weights: dict[str, Any] = {}
        for run in [run for run in left if run in simulations]:
            with self._runs.failing(run):
                weights[run] = self._weights(run, device)
        if weights:
            with self._runs.failing(*weights):
                self._start({run: simulations[run] for run in weights}, weights)

    def _simulations(self, device: torch.device) -> dict[str, Simulation]:
        """The simulations of all runs whose code is as it was planned; they share the data."""
        found: dict[str, Simulation] = {}
        for run, member in self._runs.members.items():
            with self._runs.failing(*([run] if run in self._runs.workspaces else [])):
                check_code(member)
                like = next(iter(found.values()), None)
                simulation = made(self._runs.bundle, member, like, self._store, device)
                if like is None:
                    memory.check(simulation)
                found[run] = simulation
        return found

    def _shared(
        self, mine: Mapping[str, Simulation], devices: Sequence[torch.device]
    ) -> dict[str, Simulation]:
        """Simulations whose work the team shares, where there is one."""
        if self._team is None or not mine:
            return dict(mine)
        with self._runs.failing(*(run for run in mine if run in self._runs.workspaces)):
            asked = {"bundle": self._runs.bundle.bundle, "runs": list(mine)}
            self._team.begin(asked, devices)
            return {run: self._team.joined(run, one) for run, one in mine.items()}
        return {}

    def _weights(self, run: str, device: torch.device) -> dict[str, Any] | None:
        """The stored model that a run starts from, if any."""
        member = self._runs.members[run]
        start = member.start
        if not start or member.spec.get("train_on") == start:
            return None
        weights = self._store.weights(start, device)
        if not isinstance(weights.get(GLOBAL), dict):
            raise DataError(f"{self._store.place(start)}: its weights are of no shared model")
        return dict(weights[GLOBAL])

    def _start(self, simulations: Mapping[str, Simulation], weights: Mapping[str, Any]) -> None:
        """Begin and train runs together, or one by one if they cannot begin together."""
        stack = None
        try:
            stack = self._begin(simulations, weights)
        except Exception:
            if len(simulations) == 1:
                raise
        if stack is not None:
            self._attempt(stack)
            return
        # Not within `except`, or the one error would be told as the cause of the next.
        for run in simulations:
            with self._runs.failing(run):
                self._start({run: simulations[run]}, {run: weights[run]})

    def _begin(self, simulations: Mapping[str, Simulation], weights: Mapping[str, Any]) -> Stack:
        backend: str = self._runs.bundle.execution.backend
        if backend == "auto":
            backend = self._backend or "auto"
        backend = _settled(backend, next(iter(simulations.values())))
        stack = Stack.begin(simulations, weights, backend)
        if backend == "auto":
            stack.choose(self._runs.bundle, self._runs.leaving.now)
        return stack

    def _attempt(self, stack: Stack) -> None:
        """Train a stack; one by one if its runs gain nothing from each other, or if one of them
        fails.
        """
        if len(stack.members) > 1 and stack.backend not in TOGETHER:
            for one in stack.split():
                with self._runs.failing(*one.members):
                    follow(self._runs, one)
            return
        left: list[str] = []
        try:
            follow(self._runs, stack)
        except Exception:
            left = [run for run in stack.members if run in self._runs.workspaces]
            if len(left) == 1:
                raise
            logger.warning("a stack of %d runs failed; trained one by one:", len(left))
        for run in left:
            with self._runs.failing(run):
                simulation = stack.simulations[run]
                weights = self._weights(run, simulation.arrays.device)
                follow(self._runs, self._begin({run: simulation}, {run: weights}))


def _settled(backend: str, simulation: Simulation) -> str:
    """The backend by the name of what it does for the passes of this simulation."""
    method = simulation.method
    phases = [one for m in (method, *(m.method for m in method.modals)) for one in m.phases]
    passes = [part for one in phases for part in one.passes]
    return backends.of_passes(backend, passes, simulation.arrays.device)
