"""Training the runs of a bundle: finished ones are skipped, unfinished ones are resumed.

Nothing here decides a number (see `fl.engine.simulate`). This module decides which runs are
trained together, from which state, and what happens when one fails. `fl.runner.following` goes
through the rounds.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from fl.base.errors import DataError
from fl.base.schema import GLOBAL
from fl.engine import backends, simulate
from fl.engine.backends import STACKING_BACKENDS
from fl.engine.simulation import Simulation
from fl.plan.bundle import Bundle
from fl.pytorch.devices import claim_devices
from fl.runner import auto, simulations, slurm
from fl.runner.following import follow
from fl.runner.leaving import Interrupted, asked_to_leave
from fl.runner.progress import Progress, Showing
from fl.runner.record import check_code
from fl.runner.runs import Runs
from fl.runner.stack import Stack
from fl.store import checkpoint
from fl.store.store import Store

if TYPE_CHECKING:
    from fl.runner.team import Team

logger = logging.getLogger(__name__)


def train_bundle(
    bundle: Bundle,
    store: Store,
    team: Team | None = None,
    log: str = "",
    showing: Showing | None = None,
) -> list[str]:
    """Train every run that the store lacks. A failing run does not stop the others.

    Args:
        team: The processes that train together, where they are several; this is the first of them.
        log: The file that this process prints to.
        showing: What shows progress; by default `Progress`.

    Returns:
        A line for each failed run: its id, the seed and the error. Tracebacks go to the log.

    Raises:
        Interrupted: On SIGTERM and on Ctrl-C, after the runs in progress are in a checkpoint.
        KeyboardInterrupt: On a second Ctrl-C, and on the first where nothing has to be saved.
    """
    simulations.settle(bundle, store)
    with asked_to_leave() as leaving, contextlib.ExitStack() as opened:
        lockstep = team.lockstep if team else simulate.lockstep
        runs = Runs(bundle, leaving, lockstep, showing or Progress)
        attempt = slurm.attempt(log, bundle.execution.memory_mb)
        try:
            # In one order in all processes, so that no two wait for each other.
            for run, member in sorted(runs.members.items()):
                with runs.failing(run):
                    place = store.open(run, member.keep, leaving.now)
                    workspace = opened.enter_context(place)
                    if workspace is None:
                        logger.info("%s: already there", runs.name(run))
                    else:
                        runs.workspaces[run] = workspace
                        workspace.begin(attempt)
            if runs.workspaces:
                size = team.size if team else 1
                with claim_devices(bundle.execution.device, leaving.now, size) as devices:
                    _Job(runs, store, team).train(devices)
        except (Interrupted, KeyboardInterrupt):
            asked_by = slurm.asked_by()
            for workspace in runs.workspaces.values():
                workspace.note(ended=asked_by)
            raise
    return runs.failed


class _Job:
    """A bundle being trained."""

    def __init__(self, runs: Runs, store: Store, team: Team | None = None) -> None:
        self._runs, self._store, self._team = runs, store, team
        self._simulations: dict[str, Simulation] = {}

    def train(self, devices: Sequence[torch.device]) -> None:
        """All runs that have a workspace; those with a checkpoint first, in the stack that they
        began in.

        Args:
            devices: Of each process that trains, this one's first.
        """
        self._simulations = self._shared(self._made(devices[0]), devices)
        ready = self._runs.workspaces.keys() & self._simulations.keys()
        left = [run for run in self._runs.members if run in ready]
        for run in list(left):
            if run not in left:
                continue
            with self._runs.failing(run):
                saved = checkpoint.load_latest(self._runs.workspaces[run].checkpoints)
                if saved is not None:
                    stack = Stack.resume(saved, self._simulations)
                    left = [other for other in left if other not in stack.members]
                    self._train(stack.members, stack.backend, stack)
        if left:
            with self._runs.failing(*left):
                backend = self._backend(self._simulations[left[0]])
                self._train(left, backend)

    def _made(self, device: torch.device) -> dict[str, Simulation]:
        """The simulations of all runs whose code is as it was planned; they share the data."""
        made: dict[str, Simulation] = {}
        for run, member in self._runs.members.items():
            with self._runs.failing(*([run] if run in self._runs.workspaces else [])):
                check_code(member)
                like = next(iter(made.values()), None)
                made[run] = simulations.made(self._runs.bundle, member, like, self._store, device)
        return made

    def _shared(
        self, mine: Mapping[str, Simulation], devices: Sequence[torch.device]
    ) -> dict[str, Simulation]:
        """Simulations whose work the team shares, where there is one."""
        if self._team is None or not mine:
            return dict(mine)
        with self._runs.failing(*(run for run in mine if run in self._runs.workspaces)):
            asked = {
                "bundle": self._runs.bundle.bundle,
                "runs": list(mine),
                "devices": list(map(str, devices)),
            }
            return self._team.begin(asked, mine)
        return {}

    def _backend(self, simulation: Simulation) -> str:
        """What trains the runs that begin now; those that go on have it in their checkpoint."""
        bundle = self._runs.bundle
        backend: str = bundle.execution.backend
        if backend == "auto":
            backend, why = auto.choose(simulation, bundle.unstackable)
            logger.info("backend %s (%s)", backend, why)
        methods = [simulation.method, *(modal.method for modal in simulation.method.by_modality)]
        passes = [pass_ for method in methods for phase in method.phases for pass_ in phase.passes]
        return backends.resolve_backend(
            backend, passes, simulation.training, simulation.arrays.device
        )

    def _train(self, runs: Sequence[str], backend: str, stack: Stack | None = None) -> None:
        """Train runs in one stack; one by one if they gain nothing from that, or if it fails.

        Args:
            stack: Theirs, where they go on.
        """
        if len(runs) == 1 or backend in STACKING_BACKENDS:
            try:
                follow(self._runs, stack or self._begun(runs, backend))
                return
            except Exception:
                if len(runs) == 1:
                    raise
                logger.warning("a stack of %d runs failed; trained one by one:", len(runs))
        # Not within `except`, or the one error would be told as the cause of the next.
        for run in runs:
            if run in self._runs.workspaces and not self._store.has(run):
                with self._runs.failing(run):
                    follow(self._runs, self._begun([run], backend))

    def _begun(self, runs: Sequence[str], backend: str) -> Stack:
        """Runs before their first round."""
        chosen = {run: self._simulations[run] for run in runs}
        return Stack.begin(chosen, {run: self._weights(run) for run in runs}, backend)

    def _weights(self, run: str) -> dict[str, Any] | None:
        """The stored model that a run starts from, if any."""
        member = self._runs.members[run]
        start = member.start
        if not start or member.spec.get("train_on") == start:
            return None
        weights = self._store.weights(start, self._simulations[run].arrays.device)
        if not isinstance(weights.get(GLOBAL), dict):
            raise DataError(f"{self._store.folder(start)}: its weights are of no shared model")
        return dict(weights[GLOBAL])
