"""Runs that are trained together: their state, their rounds, their checkpoints and their records.

The runs of a *stack* differ only in their seed and their draw. They have one checkpoint, in the
workspace of the first of them that is not finished. A resumed stack has the same members, so it
gives the same bits. If the process was killed between finishing two runs, the finished one is
trained again with the others, for their sake, and its result is dropped.

A process that is asked to leave finishes its round first. A process that is killed loses the rounds
after the last checkpoint: by default at most one round and the work of twenty times as long as a
checkpoint takes.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd
import torch
from torch import Tensor

from fl.api import trees
from fl.api.trees import Tree
from fl.api.uploads import attacker_mask
from fl.base import arithmetic
from fl.base.dataclass_json import as_json
from fl.base.errors import FedloomError
from fl.base.files import disk_errors
from fl.base.schema import CLOCK
from fl.data import partitioning
from fl.engine import predictions
from fl.engine.client_data import ClientData
from fl.engine.client_states import ClientStates
from fl.engine.evaluate import metrics_table
from fl.engine.simulate import Round
from fl.engine.simulation import Trainable
from fl.engine.state import State
from fl.plan import continuation
from fl.plan.bundle import Bundle, Run
from fl.plan.run_spec import RunSpec
from fl.pytorch import portable
from fl.pytorch.memory import return_freed_memory
from fl.runner import environment
from fl.runner.costs import measure_or_explain
from fl.runner.job_processes import Interruption
from fl.runner.runs import Runs
from fl.store import checkpoint
from fl.store.checkpoint import Checkpoint
from fl.store.run_record import (
    PREDICTIONS,
    WEIGHTS,
    Costs,
    ExecutionRecord,
    RunRecord,
    UnknownCosts,
)
from fl.store.store import Store
from fl.store.workspace import Workspace

logger = logging.getLogger(__name__)


MAX_CHECKPOINT_SHARE = 1 / 20
"""Largest share of its time that a run spends on checkpoints, unless the config says how many
rounds lie between them.
"""

EXPECTED_CHECKPOINT_SECONDS = 0.1
"""Expected time of a process's first checkpoint of a run; later ones take as long as the last."""


ROUNDS_OF_FREED_MEMORY = 100
"""Rounds after which freed memory is returned to the system, if clients are in a file. The small
tables of each round, which stay, lie between freed pieces, so that free memory would grow.
"""


@dataclass
class CheckpointTimes:
    """The rounds after which checkpoints are written; they decide no number of a run.

    Attributes:
        interval: Rounds between checkpoints; None: the shorter a checkpoint takes, the more there
            are.
        seconds: Expected time of the next checkpoint.
        last_time: Time of the last checkpoint, or of the begin.
    """

    interval: int | None
    seconds: float = EXPECTED_CHECKPOINT_SECONDS
    last_time: float = field(default_factory=time.monotonic)

    def is_due(self, round_: int) -> bool:
        """Whether a checkpoint is to be written after a round."""
        if self.interval is not None:
            return round_ % self.interval == 0
        return self.seconds <= MAX_CHECKPOINT_SHARE * (time.monotonic() - self.last_time)

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        """Measure the time of a checkpoint, which is written in the context."""
        begin_time = time.monotonic()
        yield
        self.last_time = time.monotonic()
        self.seconds = self.last_time - begin_time


@dataclass
class Stack:
    """Runs that are trained together, after ``round``.

    Attributes:
        simulations: The simulation of each run.
        members: The runs with which the stack began; ended runs are no longer in ``states``.
        states: The state of each run that has not ended.
        rows: Metrics of each run, without those of the newest rounds (`table`).
        backend: Name of the backend.
        round: Number of completed rounds.
        earlier_seconds: Seconds of work in earlier processes.
        begin_time: Time at which this process began or resumed the stack.
        traces: Traces of the run's method, by run and round.
        newest_rows: Metrics of the newest rounds of each run, which `table` joins to ``rows``.
        saved_clients: The clients in the newest checkpoints, as far as they are in files, so that
            nothing is written to their places.
        stretches: For each uninterrupted stretch of training, the round ``after`` which it began
            and its number of ``processes``.
    """

    simulations: dict[str, Trainable]
    members: list[str]
    states: dict[str, State]
    rows: dict[str, pd.DataFrame]
    backend: str
    round: int = 0
    earlier_seconds: float = 0.0
    begin_time: float = field(default_factory=time.monotonic)
    traces: dict[str, dict[int, dict[str, Tensor]]] = field(default_factory=dict)
    newest_rows: dict[str, list[pd.DataFrame]] = field(default_factory=dict)
    saved_clients: list[dict[str, ClientStates]] = field(default_factory=list)
    stretches: list[dict[str, int]] = field(default_factory=list)

    @classmethod
    def begin(
        cls, simulations: Mapping[str, Trainable], weights: Mapping[str, Tree | None], backend: str
    ) -> Stack:
        """Return a stack before its first round.

        Args:
            simulations: The simulation of each run.
            weights: The stored model with which each run begins; None: fresh variables.
            backend: Name of the backend.
        """
        states, rows = {}, {}
        for run, simulation in simulations.items():
            start = weights[run]
            states[run] = simulation.begin(start)
            rows[run] = metrics_table([]) if start is None else simulation.evaluate_start(start)
        return cls(dict(simulations), list(simulations), states, rows, backend)

    @classmethod
    def resume(cls, saved: Checkpoint, simulations: Mapping[str, Trainable]) -> Stack:
        """Return a stack from its checkpoint.

        Args:
            saved: The checkpoint.
            simulations: The simulation of each run; other runs of the checkpoint are left out.
        """
        members = [run for run in saved.extra["members"] if run in simulations]
        states, rows, traces = {}, dict.fromkeys(members, metrics_table([])), {}
        for run in [run for run in members if run in saved.state]:
            simulation, tree = simulations[run], saved.state[run]
            server = trees.to(tree["server"], simulation.device)
            initial, row_file = simulation.begin().client_states, saved.row_files.get(run)
            # As in `_checkpoint_workspace`, files of clients are beside the folder of checkpoints.
            folder = saved.folder.parents[1]
            clients = initial.from_checkpoint(tree["clients"], folder, row_file)
            states[run] = State(server, clients, tree.get("participation", {}))
            run_rows = saved.rows[saved.rows["run"] == run]
            rows[run] = run_rows.drop(columns="run").reset_index(drop=True)
            traces[run] = _unstack_traces(tree.get("traces", {}))
        logger.info("resumed after round %d", saved.round)
        return cls(
            {run: simulations[run] for run in members},
            members,
            states,
            rows,
            saved.extra["backend"],
            saved.round,
            saved.extra["seconds"],
            traces=traces,
            stretches=saved.extra.get("stretches", []),
        )

    @property
    def seconds(self) -> float:
        """Seconds of work for each run, an equal share of the time of the stack."""
        return (self.earlier_seconds + time.monotonic() - self.begin_time) / len(self.members)

    def add(self, finished: Mapping[str, Round]) -> None:
        """Add a finished round of some runs."""
        for run, round_ in finished.items():
            self.round = round_.number
            self.newest_rows.setdefault(run, []).append(round_.rows)
            if round_.traces:
                self.traces.setdefault(run, {})[round_.number] = round_.traces
        self.states = {
            run: round_.state for run, round_ in finished.items() if not round_.ends_early
        }
        are_in_file = any(state.client_states.are_in_file for state in self.states.values())
        if are_in_file and self.round % ROUNDS_OF_FREED_MEMORY == 0:
            return_freed_memory()

    def table(self, run: str) -> pd.DataFrame:
        """Return all metrics of a run so far."""
        newest = self.newest_rows.pop(run, [])
        if newest:
            self.rows[run] = pd.concat([self.rows[run], *newest], ignore_index=True)
        return self.rows[run]

    def stacked_traces(self, run: str) -> dict[str, Tensor] | None:
        """Return a run's traces, stacked over rounds.

        Args:
            run: Id of the run.

        Returns:
            By name a tensor [evaluated rounds, ...], and the rounds as ``round``; None if there are
            no traces.

        Raises:
            FedloomError: If a trace is named ``round``.
        """
        traces = self.traces.get(run)
        if not traces:
            return None
        names = next(iter(traces.values()))
        if "round" in names:
            raise FedloomError("a trace of the method is named 'round'", advice="rename it")
        stacks = {name: torch.stack([trace[name] for trace in traces.values()]) for name in names}
        return {"round": torch.tensor(list(traces)), **stacks}

    def save(self, folder: Path) -> None:
        """Save a checkpoint of this round in a folder."""
        saved, in_files = {}, {}
        for run, state in self.states.items():
            if state.client_states.are_in_file:
                in_files[run] = state.client_states
            saved[run] = {**_state_tree(state), "traces": self.stacked_traces(run) or {}}
        rows = pd.concat([self.table(run).assign(run=run) for run in self.states])
        seconds = self.seconds * len(self.members)
        extra = {
            "members": self.members,
            "backend": self.backend,
            "seconds": seconds,
            "stretches": self.stretches,
        }
        with disk_errors(folder):
            checkpoint.save_checkpoint(
                folder,
                self.round,
                saved,
                extra,
                rows.reset_index(drop=True),
                {run: clients.file for run, clients in in_files.items()},
            )
        self.saved_clients = [*self.saved_clients, in_files][-checkpoint.MAX_CHECKPOINTS :]


def from_kept_states(store: Store, sources: Mapping[str, str], folder: Path) -> Checkpoint:
    """Return the checkpoint from which runs go on that have more rounds than stored ones.

    The last round of a run is always evaluated. Where it is not the last one, it may not be; then
    its metrics and traces are left out.

    Args:
        store: The store.
        sources: By run, the stored run from whose state it goes on; all of one stack, in its order.
        folder: Folder of the checkpoints of one of the runs.

    Raises:
        FedloomError: If a stored run is damaged or has not kept its state.
    """
    records = [store.record(source) for source in sources.values()]
    last, execution = records[0]["rounds"], records[0]["execution"]
    is_evaluated = last % records[0]["spec"]["training"]["evaluate_every"] == 0
    state: dict[str, Any] = {}
    tables, row_files = [], dict[str, Path]()
    for run, source in sources.items():
        tree, row_file = store.state(source)
        traces, rows = store.traces(source), store.metrics(source)
        if not is_evaluated:
            count = int((traces["round"] < last).sum()) if traces else 0
            traces = {name: trace[:count] for name, trace in traces.items()} if count else {}
            rows = rows[(rows["round"] < last) | rows["split"].isin(["train", CLOCK])]
        state[run] = {**tree, "traces": traces}
        tables.append(rows.assign(run=run))
        if row_file is not None:
            row_files[run] = row_file
    extra = {
        "members": [*sources],
        "backend": execution["backend"],
        "seconds": sum(record["seconds"] for record in records),
        "stretches": execution.get("stretches", []),
    }
    rows = pd.concat(tables, ignore_index=True)
    return Checkpoint(last, state, extra, rows, folder / f"round-{last:06d}", row_files)


def _state_tree(state: State) -> dict[str, Any]:
    """Return the tree of a state on the disk, see `ClientStates.to_checkpoint`."""
    tree = {"server": state.server, "clients": state.client_states.to_checkpoint()}
    return {**tree, "participation": state.participation} if state.participation else tree


def _unstack_traces(stacks: Tree) -> dict[int, dict[str, Tensor]]:
    """Split the result of `Stack.stacked_traces` by round."""
    names = [name for name in stacks if name != "round"]
    rounds = stacks["round"].tolist() if stacks else []
    return {number: {name: stacks[name][i] for name in names} for i, number in enumerate(rounds)}


Lockstep = Callable[..., Iterator[dict[str, Round]]]


def train_stack(runs: Runs, stack: Stack, lockstep: Lockstep) -> None:
    """Train a stack to its last round, or until the process is asked to leave.

    Args:
        runs: The runs of the bundle.
        stack: The runs that are trained together.
        lockstep: `fl.engine.simulate.lockstep`, or that of several processes.

    Raises:
        Interruption: If asked to leave, after everything is saved in a checkpoint.
    """
    request = runs.leave_request
    local_runs = [run for run in stack.members if run in runs.workspaces]
    request.check()
    request.has_unsaved_rounds = False
    execution = runs.bundle.execution
    rounds = next(iter(stack.simulations.values())).training.rounds
    display = runs.make_display(_title(runs, stack), rounds, stack.round)
    for run in local_runs:
        runs.workspaces[run].note(stacked=len(local_runs) > 1)
        runs.logs[run].begin(stack.round, stack.backend, runs.curves(run, stack.round))
    _checkpoint_workspace(runs, stack)
    checkpoints = CheckpointTimes(execution.checkpoint_every)
    stack.stretches.append({"after": stack.round, "processes": execution.processes})
    for finished in lockstep(
        stack.simulations, stack.states, stack.round, stack.backend, stack.rows
    ):
        request.has_unsaved_rounds = request.has_finished_round = True
        stack.add(finished)
        for run in set(local_runs) & set(finished):
            runs.logs[run].add_round(finished[run])
        display.show(finished)
        ended_runs = [run for run, round_ in finished.items() if round_.ends_early]
        if stack.round == rounds:
            ended_runs = list(finished)
        continues = len(ended_runs) < len(finished)
        if continues and (ended_runs or request.requested or checkpoints.is_due(stack.round)):
            with checkpoints.measure():
                _save(runs, stack)
        # The first run is finished last, because it holds the checkpoint of all.
        for run in reversed(ended_runs):
            _finish(runs, run, stack, finished[run])
        if continues and request.requested:
            _leave(runs, stack)


def _leave(runs: Runs, stack: Stack) -> NoReturn:
    location = f"after round {stack.round}"
    for run in stack.states:
        if run in runs.workspaces:
            runs.logs[run].end("left", round=stack.round, place=location)
    raise Interruption(f"{', '.join(stack.states)}: left {location}", has_finished_round=True)


def _title(runs: Runs, stack: Stack) -> str:
    seeds = dict.fromkeys(str(runs.members[run].seed) for run in stack.members)
    return f"{runs.bundle.title} seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"


def _save(runs: Runs, stack: Stack) -> None:
    """Save a checkpoint after the last finished round."""
    owner = _checkpoint_workspace(runs, stack)
    if owner is None:
        return
    if owner.lost:
        raise FedloomError("another process has taken over this run and continues it")
    stack.save(owner.checkpoints)


def _checkpoint_workspace(runs: Runs, stack: Stack) -> Workspace | None:
    """Return the workspace of a stack's checkpoints, where files of clients are made, too.

    Files that a killed process left there are removed with the workspace. Of several processes, all
    but one have no workspace: None.
    """
    owner = next((runs.workspaces[run] for run in stack.states if run in runs.workspaces), None)
    for state in stack.states.values():
        state.client_states.file.folder = None if owner is None else owner.folder
    return owner


def _finish(runs: Runs, run: str, stack: Stack, last: Round) -> None:
    """Store a run after its last round."""
    if run not in runs.workspaces:
        return
    member, simulation = runs.members[run], stack.simulations[run]
    weights = simulation.final_weights(last.state) if WEIGHTS in member.keep else None
    predicted = None
    if PREDICTIONS in member.keep:
        predicted = predictions.final_predictions(simulation, last.state)
    key = member.partition_id, stack.round
    if key not in runs.costs:
        runs.costs[key] = measure_or_explain(simulation, last.state, stack.round)
    record = make_record(member, stack, last, runs.costs[key], runs.bundle)
    state, row_file = None, None
    keeps_state = runs.bundle.execution.keep_state and not last.ends_early
    if keeps_state and not continuation.obstacle(member.spec):
        clients = last.state.client_states
        state, row_file = _state_tree(last.state), clients.file if clients.are_in_file else None
    traces = stack.stacked_traces(run)
    rows, workspace = stack.table(run), runs.workspaces[run]
    workspace.finish(as_json(record), rows, weights, traces, predicted, state, row_file)
    runs.logs[run].end("finished", state=record.state, seconds=record.seconds)


def check_code(member: Run) -> None:
    """Refuse a run whose code has changed since it was planned.

    Args:
        member: The run.

    Raises:
        FedloomError: If the code or the defaults of the spec have changed.
    """
    current_code = RunSpec(member.spec).code
    changed = [key for key, code in member.code.items() if current_code.get(key) != code]
    changed += sorted({*member.defaults} - {*RunSpec(member.spec).default_keys})
    if changed:
        raise FedloomError(
            f"{member.run}: the code of its {', '.join(changed)} changed after it was planned",
            advice="plan again: start snakemake again, or fedloom plan --write",
        )


def make_record(
    member: Run, stack: Stack, last: Round, costs: Costs | UnknownCosts, bundle: Bundle
) -> RunRecord:
    """Make the record of a finished run.

    Args:
        member: The run.
        stack: The stack in which it was trained.
        last: Its last round.
        costs: Its costs.
        bundle: Its bundle.

    Returns:
        The record.
    """
    device = stack.simulations[member.run].device
    execution, folders = bundle.execution, bundle.folders
    is_portable = (
        device.type == "cpu" and bundle.arithmetic == arithmetic.PORTABLE and portable.is_portable()
    )
    return RunRecord(
        run=member.run,
        state="diverged" if last.has_diverged else "complete",
        spec=member.spec,
        code=member.code,
        defaults=member.defaults,
        code_files=RunSpec(member.spec).code_files,
        data=partitioning.data_hashes(member.code, folders.data, folders.results),
        start=member.start,
        versions=environment.versions(),
        environment=environment.environment(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        execution=ExecutionRecord(
            backend=stack.backend,
            stack=stack.members,
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            processes=execution.processes,
            stretches=stack.stretches,
            threads=1 if is_portable else execution.threads,
            arithmetic=arithmetic.PORTABLE if is_portable else arithmetic.NATIVE,
        ),
        rounds=stack.round,
        seconds=round(stack.seconds, 3),
        note=last.divergence or last.stop_reason,
        costs=costs,
        attackers=_attackers(member, stack.simulations[member.run].client_data),
    )


def _attackers(member: Run, data: ClientData) -> list[int]:
    """Return the clients that attack in a run; of those held out of training, none does."""
    filters = RunSpec(member.spec).method_components.upload_filters
    # The attackers of a smaller share are among those of a larger one.
    share = max((f.share for f in filters if getattr(f, "attacks", False)), default=0.0)
    mask = attacker_mask(member.seed, share, data.clients).numpy()
    return [int(client) for client in data.participants if mask[client]]
