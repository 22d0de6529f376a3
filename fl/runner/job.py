"""Training of the runs of a bundle: skips finished runs and resumes unfinished ones.

Nothing here decides a number (see `fl.engine.simulate`). This module decides which runs are trained
together, from which state, by which backend, and what happens when one fails. `fl.runner.stack`
runs the rounds.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from fl.api.method import Pass
from fl.api.trees import Tree
from fl.base.errors import DataError
from fl.base.schema import GLOBAL
from fl.engine import backends, simulate
from fl.engine.backends import STACKING_BACKENDS
from fl.engine.batches import count_steps
from fl.engine.simulation import Simulation
from fl.plan.bundle import Bundle
from fl.pytorch.devices import claim_devices
from fl.runner import counting, slurm
from fl.runner.job_processes import Interruption, record_leave_requests
from fl.runner.process_settings import prepare_process
from fl.runner.runs import Failure, MakeDisplay, Progress, Runs, make_simulation
from fl.runner.stack import Stack, check_code, train_stack
from fl.store import checkpoint
from fl.store.store import Store

if TYPE_CHECKING:
    from fl.runner.team import Team


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

logger = logging.getLogger(__name__)


class BackendChoice(NamedTuple):
    """A backend, and the reason for it."""

    backend: str
    reason: str


def choose_backend(simulation: Simulation, unstackable: str = "") -> BackendChoice:
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
        return BackendChoice("loop", f"clients cannot be stacked: {unstackable}")
    training, candidates = simulation.training, simulation.client_data.participants
    if training.participants(len(candidates)) == 1:
        return BackendChoice("loop", "one client takes part in a round")
    network, steps = simulation.network, training.rounds * steps_per_round(simulation)
    if simulation.is_composed:
        return BackendChoice("stacked", "clients have different networks")
    if network.is_sequence and network.layers(nn.Conv2d):
        return BackendChoice("stacked", "plain layers with convolutions")
    if network.is_sequence and steps < MIN_COMPILED_STEPS:
        return BackendChoice(
            "stacked", f"{steps:,} steps; compiling is worthwhile from {MIN_COMPILED_STEPS:,} on"
        )
    calls, flops = counting.largest_step(simulation)
    if not network.is_sequence:
        is_large = simulation.arrays.device.type == "cpu" and flops >= LARGE_STEP_FLOPS
        reason = f"{flops:.0e} operations in a step of more than plain layers"
        return BackendChoice("loop" if is_large else "stacked", reason)
    if calls > MAX_COMPILED_CALLS:
        reason = f"{calls:,} calls in a step; compiling is worthwhile up to {MAX_COMPILED_CALLS}"
        return BackendChoice("stacked", reason)
    return BackendChoice("compiled", f"{steps:,} steps of {calls:,} calls on plain layers")


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


def train_bundle(
    bundle: Bundle,
    store: Store,
    team: Team | None = None,
    log: str = "",
    make_display: MakeDisplay | None = None,
) -> list[Failure]:
    """Train every run of a bundle that the store lacks; a failing run does not stop the others.

    Args:
        bundle: The bundle.
        store: The store.
        team: The processes that train together, if there are several; this is the first of them.
        log: The file to which this process prints.
        make_display: Function that makes the display of progress; by default `Progress`.

    Returns:
        The failed runs. Tracebacks go to the log.

    Raises:
        Interruption: On SIGTERM and on Ctrl-C, after the runs in progress are in a checkpoint.
        KeyboardInterrupt: On a second Ctrl-C, and on the first if nothing must be saved.
    """
    prepare_process(bundle, store)
    with record_leave_requests() as request, contextlib.ExitStack() as workspaces:
        lockstep = team.lockstep if team else simulate.lockstep
        runs = Runs(bundle, request, lockstep, make_display or Progress)
        attempt = slurm.new_attempt(log, bundle.execution.memory_mb)
        try:
            # All processes use the same order, so that no two wait for each other.
            for run, member in sorted(runs.members.items()):
                with runs.record_failure(run):
                    workspace = workspaces.enter_context(
                        store.open(run, member.keep, request.check)
                    )
                    if workspace is None:
                        logger.info("%s: already there, is skipped", runs.name(run))
                    else:
                        runs.workspaces[run] = workspace
                        workspace.begin(attempt)
            if runs.workspaces:
                size = team.size if team else 1
                with claim_devices(bundle.execution.device, request.check, size) as devices:
                    _Job(runs, store, team).train(devices)
        except (Interruption, KeyboardInterrupt):
            reason = slurm.leave_reason()
            for workspace in runs.workspaces.values():
                workspace.note(ended=reason)
            raise
    return runs.failed


class _Job:
    """A bundle in training.

    Args:
        runs: The runs of the bundle.
        store: The store.
        team: The processes that train together, if there are several.
    """

    def __init__(self, runs: Runs, store: Store, team: Team | None = None) -> None:
        self._runs, self._store, self._team = runs, store, team
        self._simulations: dict[str, Simulation] = {}

    def train(self, devices: Sequence[torch.device]) -> None:
        """Train all runs that have a workspace.

        Runs with a checkpoint come first, in the stack in which they began.

        Args:
            devices: The device of each process; this process is the first.
        """
        self._simulations = self._share(self._make_simulations(devices[0]), devices)
        ready = self._runs.workspaces.keys() & self._simulations.keys()
        remaining = [run for run in self._runs.members if run in ready]
        for run in list(remaining):
            if run not in remaining:
                continue
            with self._runs.record_failure(run):
                saved = checkpoint.load_latest(self._runs.workspaces[run].checkpoints)
                if saved is not None:
                    stack = Stack.resume(saved, self._simulations)
                    remaining = [r for r in remaining if r not in stack.members]
                    self._train(stack.members, stack.backend, stack)
        if remaining:
            with self._runs.record_failure(*remaining):
                backend = self._choose_backend(self._simulations[remaining[0]])
                self._train(remaining, backend)

    def _make_simulations(self, device: torch.device) -> dict[str, Simulation]:
        """Make the simulations of all runs with unchanged code; they share the data."""
        by_run: dict[str, Simulation] = {}
        for run, member in self._runs.members.items():
            with self._runs.record_failure(*([run] if run in self._runs.workspaces else [])):
                check_code(member)
                sibling = next(iter(by_run.values()), None)
                by_run[run] = make_simulation(
                    self._runs.bundle, member, sibling, self._store, device
                )
        return by_run

    def _share(
        self, local: Mapping[str, Simulation], devices: Sequence[torch.device]
    ) -> dict[str, Simulation]:
        """Return simulations whose work the team shares, if there is a team."""
        if self._team is None or not local:
            return dict(local)
        with self._runs.record_failure(*(run for run in local if run in self._runs.workspaces)):
            return self._team.begin(
                {
                    "bundle": self._runs.bundle.bundle,
                    "runs": list(local),
                    "devices": list(map(str, devices)),
                },
                local,
            )
        return {}

    def _choose_backend(self, simulation: Simulation) -> str:
        """Choose the backend of new runs; resumed runs have it in their checkpoint."""
        bundle = self._runs.bundle
        backend: str = bundle.execution.backend
        if backend == "auto":
            backend, reason = choose_backend(simulation, bundle.unstackable)
            logger.info("backend %s (%s)", backend, reason)
        phases = [phase for method in simulation.methods for phase in method.phases]
        passes = [pass_ for phase in phases for pass_ in phase.passes]
        device = simulation.arrays.device
        return backends.resolve_backend(backend, passes, simulation.training, device)

    def _train(self, runs: Sequence[str], backend: str, stack: Stack | None = None) -> None:
        """Train runs in one stack; one by one if a stack has no advantage, or if it fails.

        Args:
            runs: Ids of the runs.
            backend: Name of the backend.
            stack: Their stack, if they are resumed.
        """
        if len(runs) == 1 or backend in STACKING_BACKENDS:
            try:
                train_stack(self._runs, stack or self._new_stack(runs, backend))
                return
            except Exception:
                if len(runs) == 1:
                    raise
                logger.warning(
                    "a stack of %d runs failed; its runs are trained one by one", len(runs)
                )
        # Outside of `except`, so that the next error does not name this one as its cause.
        for run in runs:
            if run in self._runs.workspaces and not self._store.has(run):
                with self._runs.record_failure(run):
                    train_stack(self._runs, self._new_stack([run], backend))

    def _new_stack(self, runs: Sequence[str], backend: str) -> Stack:
        """Return a stack of runs before their first round."""
        chosen = {run: self._simulations[run] for run in runs}
        return Stack.begin(chosen, {run: self._start_weights(run) for run in runs}, backend)

    def _start_weights(self, run: str) -> Tree | None:
        """Return the stored model with which a run begins, if any."""
        member = self._runs.members[run]
        start = member.start
        if not start or member.spec.get("train_on") == start:
            return None
        weights = self._store.weights(start, self._simulations[run].arrays.device)
        if not isinstance(weights.get(GLOBAL), dict):
            raise DataError(f"{self._store.folder(start)}: has no weights of a shared model")
        return dict(weights[GLOBAL])
