"""The tables of what methods take: rounds, time, bytes, operations, state that is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pandas as pd

from fl.base import schema
from fl.base.units import duration, operations, size
from fl.report import over_rounds
from fl.report.cells import NOTHING, Table, decimal
from fl.report.facts import Facts
from fl.report.method_tables import Record, Show, by_setting
from fl.report.over_rounds import SHARES, TIMED
from fl.report.summaries import KEY

COSTS = tuple(column for column in schema.COSTS if column != "seconds")


def pace_table(facts: Facts) -> Table | None:
    """Rounds and time to shares of each method's final value, and of the best method's."""
    frame = _nested(facts, over_rounds.reached(facts.rows, facts.runs, facts.metric))
    if frame.empty:
        return None
    timed = f"{100 * TIMED:g} %"
    percents = ", ".join(f"{100 * share:g}" for share in SHARES)
    caption = (
        f"Rounds until the mean over clients is {percents} % of the method's own final value, the "
        f"time to {timed} of it, and rounds to {timed} of the best final value of the setting; "
        f"mean ± standard deviation over {facts.replicates}. Rounds and time behind a stored model "
        "that a method starts from count."
    )
    shown: dict[str, Show] = {
        f"rounds to\n{100 * share:g} %": partial(_rounds, str(share)) for share in SHARES
    }
    shown[f"time to\n{timed}"] = lambda row: _mean(row["seconds"], duration)
    shown[f"rounds to {timed}\nof the best"] = partial(_rounds, "best")
    return by_setting(facts, "pace", caption, frame, shown)


def costs_table(facts: Facts) -> Table | None:
    """Costs by client and round, and the bytes of all clients until `TIMED` of each final value."""
    runs_with_traffic = facts.runs[facts.runs["traffic"].notna()].drop_duplicates("run")
    runs = over_rounds.reached(facts.rows, facts.runs, facts.metric)
    runs = runs.merge(
        runs_with_traffic[["run", *COSTS]].astype(dict.fromkeys(COSTS, "float64")), on="run"
    )
    if runs.empty:
        return None
    percent = f"{100 * TIMED:g} %"
    shown: dict[str, Show] = {
        "down a client\nand round": lambda row: _mean(row["bytes_down"], size),
        "up a client\nand round": lambda row: _mean(row["bytes_up"], size),
        f"in total\nto {percent}": lambda row: _mean(row["bytes"], size),
        "operations a client\nand round": lambda row: _mean(row["flops"], operations),
    }
    if (runs["flops_server"] > 0).any():
        shown["operations of\nthe server\na round"] = lambda row: _mean(
            row["flops_server"], operations
        )
    shown["memory of\na client"] = lambda row: _mean(row["memory_client"], size)
    shown["state of\na client"] = lambda row: _mean(row["state_client"], size)
    shown["state of\nthe server"] = lambda row: _mean(row["state_server"], size)
    caption = (
        "What a participant receives, sends and computes in a round, the weights and states that a "
        "step of it reads, what is kept between rounds, "
        f"and bytes down and up of all participants until the mean over clients is {percent} of "
        "the method's own final value, those behind a stored model that a method starts from "
        "included. Bytes are uncompressed unless an upload filter compresses them; operations are "
        f"those of matrix products and convolutions. Means over {facts.replicates}."
    )
    return by_setting(facts, "costs", caption, _nested(facts, runs), shown)


def _nested(facts: Facts, runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each setting and method; each of its cells has the values of all its runs."""
    return facts.placed(runs).groupby(KEY, sort=False).agg(list).reset_index()


def _rounds(goal: str, row: Record) -> str:
    values: Sequence[float] = row[goal]
    finite = pd.Series(values, dtype="float64").dropna()
    deviation = f" ± {decimal(finite.std(), 1)}" if len(finite) > 1 else ""
    return _mean(values, lambda mean: decimal(mean, 1) + deviation)


def _mean(values: Sequence[float], text: Callable[[float], str]) -> str:
    """The mean of what is known, and of how many runs it is where some are not."""
    finite = pd.Series(values, dtype="float64").dropna()
    if finite.empty:
        return NOTHING
    share = f" ({len(finite)} of {len(values)} runs)" if len(finite) < len(values) else ""
    return text(float(finite.mean())) + share
