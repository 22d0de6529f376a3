"""The rounds of runs, one after another, with evaluation.

`fl.runner` shows, stores and resumes runs.

Early stopping ends a run after a number of rounds without a better value on validation data. L.
Prechelt. Early Stopping - But When? In: Neural Networks: Tricks of the Trade, 1998. This is the
simplest of its criteria.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fl.api import trees
from fl.base.errors import FedloomError
from fl.base.schema import CLOCK, GLOBAL, PERSONAL, SERVER_ROW, rising
from fl.engine.evaluate import losses_table, metrics_table
from fl.engine.simulation import Trainable
from fl.engine.state import UNDIVIDED, Division, RoundSchedule, State, check_server
from fl.pytorch import random_numbers


@dataclass(frozen=True)
class Round:
    """A finished round.

    Attributes:
        number: Number of the round.
        state: The state after it.
        rows: Training losses and, in evaluated rounds, metrics, in the columns of
            `fl.base.schema.METRIC_COLUMNS`.
        loss: Mean training loss over participants.
        divergence: Description of values that are no longer finite; empty if all are finite.
        traces: Tensors that the method records of an evaluated round, see `fl.api.method.Method`.
        stop_reason: Reason for which the run stops early; empty if it continues.
    """

    number: int
    state: State
    rows: pd.DataFrame
    loss: float
    divergence: str
    traces: dict[str, Tensor] = field(default_factory=dict)
    stop_reason: str = ""

    @property
    def has_diverged(self) -> bool:
        """Whether the run ends after this round because a value is no longer finite."""
        return bool(self.divergence)

    @property
    def ends_early(self) -> bool:
        """Whether the run ends after this round, before its planned last round."""
        return self.has_diverged or bool(self.stop_reason)


def rounds(simulation: Trainable, state: State, completed: int, backend: str) -> Iterator[Round]:
    """Yield the remaining rounds of one run; see `lockstep`.

    Args:
        simulation: The run.
        state: Its state after the completed rounds.
        completed: Number of completed rounds.
        backend: Name of the backend.
    """
    for finished in lockstep({0: simulation}, {0: state}, completed, backend):
        yield finished[0]


Key = TypeVar("Key")


def lockstep(
    simulations: Mapping[Key, Trainable],
    states: Mapping[Key, State],
    completed: int,
    backend: str,
    rows: Mapping[Key, pd.DataFrame] | None = None,
    division: Division = UNDIVIDED,
) -> Iterator[dict[Key, Round]]:
    """Yield the remaining rounds of several runs that are trained together.

    The runs differ only in their seed and their draw. A run that diverges or stops early is left
    out after that round; the iteration ends when no run is left.

    Args:
        simulations: The runs.
        states: Their states after the completed rounds.
        completed: Number of completed rounds.
        backend: Name of the backend.
        rows: Metrics of the completed rounds, for runs that may stop early; None before round 1.
        division: How the work is divided.

    Yields:
        The finished round of each run.

    Raises:
        FedloomError: If a round draws random numbers that do not depend on keys, or if the server
            has other tensors after it.
    """
    training = next(iter(simulations.values())).training
    running, total = dict(states), training.rounds
    scores: dict[Key, dict[int, float]] = {key: {} for key in running}
    if training.early_stopping is not None and rows is not None:
        scores = {key: validation_scores(simulations[key], rows[key]) for key in running}
    for number in range(completed + 1, total + 1):
        runs = [simulations[key] for key in running]
        schedules = [
            run.round_schedule(number, running[key]) for key, run in zip(running, runs, strict=True)
        ]
        initial_states = random_numbers.generator_states()
        methods = [run.method for run in runs]
        results = runs[0].run_rounds(methods, [*running.values()], schedules, backend, division)
        if random_numbers.have_generators_changed(initial_states):
            raise FedloomError(
                f"round {number} used PyTorch's shared random numbers, so the run cannot be "
                "repeated",
                advice="draw numbers by a key of the batch in methods, terms and models "
                "(fl.pytorch.keyed)",
            )
        for state, (new_state, _) in zip(running.values(), results, strict=True):
            check_server(state.server, new_state.server, "aggregate")
        results = [
            (run.finish_round(schedule, state, losses), losses)
            for run, schedule, (state, losses) in zip(runs, schedules, results, strict=True)
        ]
        finished = {
            key: _finish(run, schedule, *result, division)
            for key, run, schedule, result in zip(running, runs, schedules, results, strict=True)
        }
        if training.early_stopping is not None and number < total:
            for key, round_ in finished.items():
                scores[key] |= validation_scores(simulations[key], round_.rows)
                reason = stop_reason(scores[key], training.early_stopping)
                finished[key] = replace(round_, stop_reason="" if round_.has_diverged else reason)
        yield finished
        running = {key: round_.state for key, round_ in finished.items() if not round_.ends_early}
        if not running:
            return


def _finish(
    simulation: Trainable,
    schedule: RoundSchedule,
    state: State,
    losses: Tensor,
    division: Division,
) -> Round:
    """Return a finished round with its metrics, evaluated if the settings say so."""
    number, training = schedule.round, simulation.training
    loss, divergence = float(losses.double().mean()), ""
    traces: dict[str, Tensor] = {}
    rows = losses_table(
        number,
        _reported_stage(simulation),
        schedule.clients.cpu().numpy(),
        losses.double().cpu().numpy(),
        schedule.n.long().cpu().numpy(),
    )
    if schedule.times:
        rows = pd.concat([rows, clock_table(number, schedule)], ignore_index=True)
    is_evaluated = number % training.evaluate_every == 0 or number == training.rounds
    if not math.isfinite(loss):
        clients = schedule.clients[~torch.isfinite(losses.cpu())].tolist()
        divergence = (
            f"the training loss of {_client_list(clients)} was no longer finite in round {number}"
        )
    elif is_evaluated:
        metrics = simulation.evaluate(state, number, division)
        diverged_clients = metrics.loc[~np.isfinite(metrics["value"]), "client"]
        if len(diverged_clients):
            clients = diverged_clients.unique().tolist()
            divergence = (
                f"the evaluation of {_client_list(clients)} was no longer finite after round "
                f"{number}"
            )
        rows = pd.concat([rows, metrics], ignore_index=True)
        method = simulation.method
        if method.trace:
            traces |= trees.to(method.trace(state.server), "cpu")
        if method.trace_clients:
            traces |= trees.to(method.trace_clients(state.clients), "cpu")
    return Round(number, state, rows, loss, divergence, traces)


def clock_table(number: int, schedule: RoundSchedule) -> pd.DataFrame:
    """Return the table of metrics for the simulated time of a round; its rows are the server's."""
    assert schedule.times is not None
    values, count = schedule.times.values(), len(schedule.clients)
    return metrics_table(
        [
            (number, SERVER_ROW, CLOCK, GLOBAL, metric, value, count)
            for metric, value in values.items()
        ]
    )


def _client_list(clients: list[int]) -> str:
    shown = ", ".join(map(str, clients[:5]))
    suffix = f" and {len(clients) - 5} more" if len(clients) > 5 else ""
    return f"client{'s' if len(clients) > 1 else ''} {shown}{suffix}"


def _reported_stage(simulation: Trainable) -> str:
    """Return the stage whose metrics are reported: the clients' own models if there are any."""
    return PERSONAL if PERSONAL in simulation.method.views else GLOBAL


def validation_scores(simulation: Trainable, rows: pd.DataFrame) -> dict[int, float]:
    """Return a run's score on validation data by evaluated round; more is better.

    Args:
        simulation: The run.
        rows: Its metrics, in the columns of `fl.base.schema.METRIC_COLUMNS`.

    Returns:
        By round, the mean over clients of the task's first metric in the reported stage.
    """
    metric = simulation.task.metrics[0]
    is_scored = (rows["split"] == "val") & (rows["metric"] == metric)
    is_scored &= rows["stage"] == _reported_stage(simulation)
    scores = rows[is_scored].groupby("round")["value"].mean() * (1 if rising(metric) else -1)
    return {int(str(number)): float(value) for number, value in scores.items()}


def stop_reason(scores: Mapping[int, float], patience: int) -> str:
    """Return the reason to end a run, as a text; empty if the run continues.

    Args:
        scores: Result of `validation_scores` for all rounds so far.
        patience: Number of rounds without a better score after which a run ends.
    """
    best, last = max(sorted(scores), key=scores.__getitem__, default=0), max(scores, default=0)
    if last - best < patience:
        return ""
    return f"stopped after round {last}: on validation data no round was better than round {best}"
