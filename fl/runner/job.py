"""Training of the runs of a bundle: skips finished runs and resumes unfinished ones.

Nothing here decides a number (see `fl.engine.simulate`). This module decides which runs are trained
together, from which state, by which backend, and what happens when one fails. `fl.runner.stack`
runs the rounds.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from fl.api.method import Pass
from fl.api.trees import Tree
from fl.base.arithmetic import NATIVE
from fl.base.errors import DataError, FedloomError
from fl.base.schema import GLOBAL
from fl.engine import backends, simulate
from fl.engine.assembly import join_draws, stack_of
from fl.engine.backends import STACKING_BACKENDS
from fl.engine.batches import count_steps, set_pass_length
from fl.engine.simulation import Simulation, Trainable
from fl.plan.bundle import Bundle, Run
from fl.plan.continuation import Sources
from fl.pytorch.devices import claim_devices
from fl.runner import costs, slurm
from fl.runner.job_processes import Interruption, record_leave_requests
from fl.runner.process_settings import prepare_process
from fl.runner.runs import Failure, MakeDisplay, Progress, Runs, make_simulation
from fl.runner.stack import Stack, check_code, from_kept_states, train_stack
from fl.store import checkpoint
from fl.store.checkpoint import Checkpoint
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


def choose_backend(simulation: Trainable, unstackable: str = "") -> BackendChoice:
    """Choose the backend of a run by its spec and data, so that it is the same on all machines.

    - `loop` if one client takes part in a round, if something cannot be stacked, and on a CPU if
      the model is no sequence of plain layers and takes 10^9 floating-point operations a step;
    - `compiled` if the arithmetic is native, the model is a sequence of plain layers without
      convolutions, a client takes at least 40,000 steps in the whole run, and a step has at most
      400 calls;
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
    if not isinstance(simulation, Simulation):
        return BackendChoice("stacked", "clients have different networks")
    network, steps = simulation.network, training.rounds * steps_per_round(simulation)
    if network.is_sequence and network.layers(nn.Conv2d):
        return BackendChoice("stacked", "plain layers with convolutions")
    if network.is_sequence and training.arithmetic != NATIVE:
        return BackendChoice("stacked", "a compiled program's bits depend on the compiler")
    if network.is_sequence and steps < MIN_COMPILED_STEPS:
        return BackendChoice(
            "stacked", f"{steps:,} steps; compiling is worthwhile from {MIN_COMPILED_STEPS:,} on"
        )
    calls, flops = costs.largest_step(simulation)
    if not network.is_sequence:
        is_large = simulation.device.type == "cpu" and flops >= LARGE_STEP_FLOPS
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
    sampling, data = pass_.sampling, simulation.client_data
    sizes = data.sizes("train")[data.participants]
    steps = count_steps(sizes, set_pass_length(simulation.training, sampling, 1))
    return int(steps.max(initial=0)) * sampling.steps_per_batch


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
    count = team.size if team else 1
    with record_leave_requests() as request:
        runs = Runs(bundle, request, make_display or Progress)
        with _open_workspaces(runs, store, log, count) as devices:
            by_run: dict[str, Trainable] = {}
            for run, member in runs.members.items() if devices else ():
                with runs.record_failure(*([run] if run in runs.workspaces else [])):
                    check_code(member)
                    of_draw = (by_run[other] for other in by_run if runs.have_same_data(run, other))
                    sibling = next(of_draw, None)
                    by_run[run] = make_simulation(bundle, member, sibling, store, devices[0])
            by_run = join_draws(by_run)
            lockstep = partial(team.lockstep, bundle.bundle, devices) if team else simulate.lockstep
            for members, backend, saved in _groups(runs, store, by_run):
                single = len(members) == 1
                with runs.record_failure(*members) if single else _stack_failure(members):
                    stack = (
                        Stack.resume(saved, by_run)
                        if saved is not None
                        else _new_stack(members, backend, runs, store, by_run)
                    )
                    train_stack(runs, stack, lockstep)
    return runs.failed


@contextlib.contextmanager
def _open_workspaces(
    runs: Runs, store: Store, log: str, processes: int
) -> Iterator[list[torch.device]]:
    """Open the workspaces of all runs that the store lacks, which stay open within the context.

    Yields:
        The device of each process, this one first; none if the store has all runs.
    """
    request, execution = runs.leave_request, runs.bundle.execution
    attempt = slurm.new_attempt(log, execution.memory_mb)
    with contextlib.ExitStack() as contexts:
        try:
            # All processes use the same order, so that no two wait for each other.
            for run, member in sorted(runs.members.items()):
                with runs.record_failure(run):
                    workspace = contexts.enter_context(store.open(run, member.keep, request.check))
                    if workspace is None:
                        logger.info("%s: already there, is skipped", runs.name(run))
                    else:
                        runs.workspaces[run] = workspace
                        workspace.begin(attempt)
            devices: list[torch.device] = []
            if runs.workspaces:
                claim = claim_devices(execution.device, request.check, processes)
                devices = contexts.enter_context(claim)
            yield devices
        except (Interruption, KeyboardInterrupt):
            reason = slurm.leave_reason()
            for workspace in runs.workspaces.values():
                workspace.note(ended=reason)
            raise


class _Group(NamedTuple):
    """Runs that are trained together: ids, backend, and their checkpoint if they have one."""

    members: list[str]
    backend: str
    saved: Checkpoint | None = None


def _groups(runs: Runs, store: Store, by_run: Mapping[str, Trainable]) -> Iterator[_Group]:
    """Yield the groups of runs to train; if training one fails, its runs are yielded one by one.

    Runs with a checkpoint come first, in the stack in which they began; then runs that go on from
    stored ones of fewer rounds.
    """
    remaining = [run for run in runs.members if run in runs.workspaces and run in by_run]
    for run in list(remaining):
        saved = None
        if run in remaining:
            with runs.record_failure(run):
                saved = checkpoint.load_latest(runs.workspaces[run].checkpoints)
        if saved is not None:
            members = [member for member in saved.extra["members"] if member in by_run]
            remaining = [member for member in remaining if member not in members]
            yield from _with_singles(_Group(members, saved.extra["backend"], saved), runs, store)
    stacks: dict[object, list[str]] = {}
    for run in remaining:
        stacks.setdefault(stack_of(by_run[run]), []).append(run)
    for members in stacks.values():
        yield from _new_groups(members, runs, store, by_run[members[0]])


def _new_groups(
    remaining: list[str], runs: Runs, store: Store, simulation: Trainable
) -> Iterator[_Group]:
    """Yield the groups of runs without a checkpoint that can be one stack."""
    backend = ""
    with runs.record_failure(*remaining):
        backend = _choose_backend(runs.bundle, simulation)
    for group in _continued(runs, store, remaining, backend) if backend else ():
        remaining = [member for member in remaining if member not in group.members]
        yield from _with_singles(group, runs, store)
    if backend in STACKING_BACKENDS and remaining:
        yield from _with_singles(_Group(remaining, backend), runs, store)
    elif backend:
        yield from (_Group([run], backend) for run in remaining)


def _continued(
    runs: Runs, store: Store, remaining: Sequence[str], backend: str
) -> Iterator[_Group]:
    """Yield the groups of runs that go on from stored ones of fewer rounds.

    The stored ones must have the backend of a run that begins with round 1, as `choose_backend` may
    choose another one for more rounds.
    """
    if not runs.bundle.execution.keep_state:
        return
    planned = [runs.members[run] for run in remaining]
    sources = Sources(store, with_state=True).of_runs(planned, keeps_state=True)
    going_on = {source.run: run for run, source in sources.items() if not source.problem}
    for stack in dict.fromkeys(sources[run].stack for run in going_on.values()):
        members = {going_on[source]: source for source in stack}
        first = next(iter(members))
        try:
            folder = runs.workspaces[first].checkpoints
            saved = from_kept_states(store, members, folder)
        except FedloomError as error:
            logger.warning("%s: begins with round 1: %s", runs.name(first), error)
            continue
        if saved.extra["backend"] != backend:
            change = f"{saved.extra['backend']}, and is {backend} for more rounds"
            logger.info("%s: begins with round 1: its backend was %s", runs.name(first), change)
            continue
        names = ", ".join(stack)
        logger.info("%s: goes on from round %d of %s", runs.name(first), saved.round, names)
        yield _Group([*members], backend, saved)


def _with_singles(group: _Group, runs: Runs, store: Store) -> Iterator[_Group]:
    """Yield a group; then each of its runs that is not stored, if there were several."""
    yield group
    for run in group.members if len(group.members) > 1 else ():
        if run in runs.workspaces and not store.has(run):
            yield _Group([run], group.backend)


@contextlib.contextmanager
def _stack_failure(members: Sequence[str]) -> Iterator[None]:
    """Log an error within the context as that of a stack, whose runs are then trained alone."""
    try:
        yield
    except Exception:
        count = len(members)
        logger.warning("a stack of %d runs failed; its runs are trained one by one", count)


def _choose_backend(bundle: Bundle, simulation: Trainable) -> str:
    """Choose the backend of new runs; resumed runs have it in their checkpoint."""
    backend: str = bundle.execution.backend
    if backend == "auto":
        backend, reason = choose_backend(simulation, bundle.unstackable)
        logger.info("backend %s (%s)", backend, reason)
    passes = [pass_ for phase in simulation.method.phases for pass_ in phase.passes]
    return backends.resolve_backend(backend, passes, simulation.training, simulation.device)


def _new_stack(
    members: Sequence[str],
    backend: str,
    runs: Runs,
    store: Store,
    by_run: Mapping[str, Trainable],
) -> Stack:
    """Return a stack of runs before their first round."""
    chosen = {run: by_run[run] for run in members}
    weights = {run: _start_weights(runs.members[run], store, chosen[run].device) for run in members}
    return Stack.begin(chosen, weights, backend)


def _start_weights(member: Run, store: Store, device: torch.device) -> Tree | None:
    """Return the stored model with which a run begins, if any."""
    start = member.start
    if not start or member.spec.get("train_on") == start:
        return None
    weights = store.weights(start, device)
    if not isinstance(weights.get(GLOBAL), dict):
        raise DataError(f"{store.folder(start)}: has no weights of a shared model")
    return dict(weights[GLOBAL])
