"""The rounds of runs, one after another, evaluated.

Watching, storing and resuming a run are in `fl.runner.job`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import Method
from fl.base.errors import FedloomError
from fl.base.schema import GLOBAL, PERSONAL
from fl.engine import engine, modality, stopping
from fl.engine.evaluate import as_rows
from fl.engine.simulation import Simulation
from fl.engine.state import RoundPlan, State
from fl.pytorch import random_numbers


@dataclass(frozen=True)
class Round:
    """A finished round: its state and its rows (training loss always, scores when evaluated).

    Attributes:
        trouble: What was no longer finite, in words; "" if everything is.
        traces: What the method records of an evaluated round, see `fl.api.method.Method`.
        stopped: Why the run ends here though all is well, in words; "" if it goes on.
    """

    number: int
    state: State
    rows: pd.DataFrame
    loss: float
    trouble: str
    traces: dict[str, Tensor] = field(default_factory=dict)
    stopped: str = ""

    @property
    def diverged(self) -> bool:
        """Whether the run ends here because something is no longer finite."""
        return bool(self.trouble)

    @property
    def ended(self) -> bool:
        """Whether the run ends here, before its last round."""
        return self.diverged or bool(self.stopped)


def rounds(simulation: Simulation, state: State, done: int, backend: str) -> Iterator[Round]:
    """The rounds after ``done``, one by one; ends early at a loss that is not finite."""
    for finished in lockstep({0: simulation}, {0: state}, done, backend):
        yield finished[0]


Key = TypeVar("Key")


def lockstep(
    simulations: Mapping[Key, Simulation],
    states: Mapping[Key, State],
    done: int,
    backend: str,
    rows: Mapping[Key, pd.DataFrame] | None = None,
) -> Iterator[dict[Key, Round]]:
    """The rounds after ``done`` of several runs that differ in their seed only, trained together.

    A run that diverges, or is stopped early, leaves the others after that round; ends when none is
    left.

    Args:
        rows: Of the rounds before, for those who may stop; None before the first one.
    """
    training = next(iter(simulations.values())).training
    running, total = dict(states), training.rounds
    seen: dict[Key, dict[int, float]] = {key: {} for key in running}
    if training.early_stopping is not None and rows is not None:
        seen = {key: stopping.scores(simulations[key], rows[key]) for key in running}
    for number in range(done + 1, total + 1):
        runs = [simulations[key] for key in running]
        plans = [run.plan(number) for run in runs]
        methods = [run.method for run in runs]
        before = random_numbers.generator_states()
        run_rounds = modality.run_rounds if methods[0].by_modality else engine.run_rounds
        results = run_rounds(methods, list(running.values()), plans, backend)
        if random_numbers.have_generators_changed(before):
            raise FedloomError(
                f"round {number} drew from PyTorch's shared random numbers, so that the run would "
                "not come out again; allowed in a method, a term and a model: numbers by a key of "
                "the batch (fl.pytorch.keyed)"
            )
        finished = {
            key: _finished(run, plan, *result)
            for key, run, plan, result in zip(running, runs, plans, results, strict=True)
        }
        if training.early_stopping is not None and number < total:
            for key, round_ in finished.items():
                seen[key] |= stopping.scores(simulations[key], round_.rows)
                why = stopping.stopped(seen[key], training.early_stopping)
                finished[key] = replace(round_, stopped="" if round_.diverged else why)
        yield finished
        running = {key: round_.state for key, round_ in finished.items() if not round_.ended}
        if not running:
            return


def _finished(simulation: Simulation, plan: RoundPlan, state: State, losses: Tensor) -> Round:
    """A round with its rows, evaluated if it is due."""
    number, training = plan.round, simulation.training
    loss, trouble = float(losses.double().mean()), ""
    traces: dict[str, Tensor] = {}
    rows = _training_rows(simulation.method, plan, losses)
    due = number % training.evaluate_every == 0 or number == training.rounds
    if not math.isfinite(loss):
        clients = plan.clients[~torch.isfinite(losses.cpu())].tolist()
        trouble = f"the training loss of {_named(clients)} was no longer finite in round {number}"
    elif due:
        scores = simulation.evaluate(state, number)
        bad = scores.loc[~np.isfinite(scores["value"]), "client"]
        if len(bad):
            trouble = (
                f"the evaluation of {_named(bad.unique().tolist())} was no longer finite after "
                f"round {number}"
            )
        rows = pd.concat([rows, scores], ignore_index=True)
        method = simulation.method
        if method.trace:
            traces |= trees.to(method.trace(state.server), "cpu")
        if method.trace_clients:
            traces |= trees.to(method.trace_clients(state.clients), "cpu")
    return Round(number, state, rows, loss, trouble, traces)


def _named(clients: list[int]) -> str:
    shown = ", ".join(map(str, clients[:5]))
    more = f" and {len(clients) - 5} more" if len(clients) > 5 else ""
    return f"client{'s' if len(clients) > 1 else ''} {shown}{more}"


def _training_rows(method: Method, plan: RoundPlan, losses: Tensor) -> pd.DataFrame:
    stage = PERSONAL if PERSONAL in method.views else GLOBAL
    rows: list[Any] = [
        (plan.round, client, "train", stage, "loss", value, n)
        for client, value, n in zip(
            plan.clients.tolist(), losses.double().tolist(), plan.n.long().tolist(), strict=True
        )
    ]
    return as_rows(rows)
