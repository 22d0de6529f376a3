"""The rounds of a stack, one after another: reported, saved every few rounds, stored at the end.

A process that is asked to leave finishes its round first. One that is killed loses the rounds after
the last checkpoint.
"""

from __future__ import annotations

import logging
from typing import NoReturn

from fl.base.errors import FedloomError
from fl.engine import predictions
from fl.engine.simulate import Round
from fl.runner import costs
from fl.runner.leaving import Interrupted
from fl.runner.record import record
from fl.runner.runs import Runs
from fl.runner.stack import Stack
from fl.store.layout import PREDICTIONS, WEIGHTS

logger = logging.getLogger(__name__)


def follow(runs: Runs, stack: Stack) -> None:
    """Train a stack to its last round, or until the process is asked to leave.

    Raises:
        Interrupted: If asked to leave, after everything is saved in a checkpoint.
    """
    leaving, mine = runs.leaving, [run for run in stack.members if run in runs.workspaces]
    leaving.now()
    leaving.begun = False
    rounds = next(iter(stack.simulations.values())).training.rounds
    progress = runs.showing(_title(runs, stack), rounds, stack.round)
    for run in mine:
        runs.workspaces[run].note(stacked=len(mine) > 1)
        about, programs = {"backend": stack.backend}, runs.bundle.execution.log
        runs.logs[run].begun(stack.round, about, programs, runs.curves(run))
    every = runs.bundle.execution.checkpoint_every
    stretch = {"after": stack.round, "processes": runs.bundle.execution.processes}
    stack.stretches.append(stretch)
    known = stack.simulations, stack.states, stack.round, stack.backend, stack.rows
    for finished in runs.lockstep(*known):
        leaving.begun = leaving.rounds = True
        stack.add(finished)
        for run in set(mine) & set(finished):
            runs.logs[run].round(finished[run])
        progress.show(finished)
        ended = [run for run, round_ in finished.items() if round_.ends_early]
        if stack.round == rounds:
            ended = list(finished)
        goes_on = len(ended) < len(finished)
        if goes_on and (ended or leaving.asked or stack.round % every == 0):
            _save(runs, stack)
        # The first last: it holds the checkpoint of all.
        for run in reversed(ended):
            _finish(runs, run, stack, finished[run])
        if goes_on and leaving.asked:
            _leave(runs, stack)


def _leave(runs: Runs, stack: Stack) -> NoReturn:
    location = f"after round {stack.round}"
    for run in stack.states:
        if run in runs.workspaces:
            runs.logs[run].ended("left", round=stack.round, place=location)
    raise Interrupted(f"{', '.join(stack.states)}: left {location}", rounds=True)


def _title(runs: Runs, stack: Stack) -> str:
    seeds = [str(runs.members[run].seed) for run in stack.members]
    return f"{runs.bundle.title} seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"


def _save(runs: Runs, stack: Stack) -> None:
    """A checkpoint after the last round."""
    owner = next((run for run in stack.states if run in runs.workspaces), None)
    if owner is None:
        return
    if runs.workspaces[owner].lost:
        raise FedloomError("another process has taken this run over; it goes on there")
    stack.save(runs.workspaces[owner].checkpoints)


def _finish(runs: Runs, run: str, stack: Stack, last: Round) -> None:
    if run not in runs.workspaces:
        return
    member, simulation = runs.members[run], stack.simulations[run]
    final = simulation.final_weights(last.state) if WEIGHTS in member.keep else None
    seen = (
        predictions.final_predictions(simulation, last.state)
        if PREDICTIONS in member.keep
        else None
    )
    if runs.costs is None:
        runs.costs = costs.recorded(simulation, last.state)
    content = record(member, stack, last, runs.costs, runs.bundle)
    traces = stack.stacked_traces(run)
    runs.workspaces[run].finish(content, stack.rows[run], final, traces, seen)
    runs.logs[run].ended("finished", state=content["state"], seconds=content["seconds"])
