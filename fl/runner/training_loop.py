"""The rounds of a stack: shown, saved every few rounds, and stored at the end.

A process that is asked to leave finishes its round first. A process that is killed loses the rounds
after the last checkpoint.
"""

from __future__ import annotations

from typing import NoReturn

from fl.base.dataclass_json import as_json
from fl.base.errors import FedloomError
from fl.engine import predictions
from fl.engine.simulate import Round
from fl.runner.interruption import Interruption
from fl.runner.record import make_record, measure_costs
from fl.runner.runs import Runs
from fl.runner.stack import Stack
from fl.store.layout import PREDICTIONS, WEIGHTS


def train_stack(runs: Runs, stack: Stack) -> None:
    """Train a stack to its last round, or until the process is asked to leave.

    Args:
        runs: The runs of the bundle.
        stack: The runs that are trained together.

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
        runs.logs[run].begin(stack.round, stack.backend, execution.log, runs.curve_target(run))
    stack.stretches.append({"after": stack.round, "processes": execution.processes})
    for finished in runs.lockstep(
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
        is_checkpoint_due = stack.round % execution.checkpoint_every == 0
        if continues and (ended_runs or request.requested or is_checkpoint_due):
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
    seeds = [str(runs.members[run].seed) for run in stack.members]
    return f"{runs.bundle.title} seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"


def _save(runs: Runs, stack: Stack) -> None:
    """Save a checkpoint after the last finished round."""
    owner = next((run for run in stack.states if run in runs.workspaces), None)
    if owner is None:
        return
    if runs.workspaces[owner].lost:
        raise FedloomError("another process has taken over this run and continues it")
    stack.save(runs.workspaces[owner].checkpoints)


def _finish(runs: Runs, run: str, stack: Stack, last: Round) -> None:
    """Store a run after its last round."""
    if run not in runs.workspaces:
        return
    member, simulation = runs.members[run], stack.simulations[run]
    weights = simulation.final_weights(last.state) if WEIGHTS in member.keep else None
    predicted = None
    if PREDICTIONS in member.keep:
        predicted = predictions.final_predictions(simulation, last.state)
    if stack.round not in runs.costs:
        runs.costs[stack.round] = measure_costs(simulation, last.state, stack.round)
    record = make_record(member, stack, last, runs.costs[stack.round], runs.bundle)
    traces = stack.stacked_traces(run)
    rows, workspace = stack.rows[run], runs.workspaces[run]
    workspace.finish(as_json(record), rows, weights, traces, predicted)
    runs.logs[run].end("finished", state=record.state, seconds=record.seconds)
