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
    caption = (
        f"Rounds and time until the mean over clients reaches shares of the method's own final "
        f"value, and rounds to {timed} of the best final value in the setting. Mean ± standard "
        f"deviation over {facts.replicates}."
    )
    note = f"Rounds and time of a stored model that a method starts from are included.{facts.when}"
    note += _errors_note(facts)
    shown: dict[str, Show] = {
        f"rounds to\n{100 * share:g} %": partial(_rounds, str(share)) for share in SHARES
    }
    shown[f"time to\n{timed}"] = lambda row: _mean(row["seconds"], duration)
    shown[f"rounds to {timed}\nof the best"] = partial(_rounds, "best")
    return by_setting(facts, "pace", caption, frame, shown, note=note)


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
        "Cost of a round for a participant, state kept between rounds, and bytes of all "
        f"participants, down and up, until the mean over clients is {percent} of the method's own "
        f"final value. Means over {facts.replicates}."
    )
    note = (
        "Memory: weights and states that a training step reads. Bytes are uncompressed unless an "
        "upload filter compresses them, and include those of a stored model that a method starts "
        f"from. Operations are those of matrix products and convolutions.{facts.when}"
        f"{_errors_note(facts)}"
    )
    return by_setting(facts, "costs", caption, _nested(facts, runs), shown, note=note)


def _errors_note(facts: Facts) -> str:
    """A sentence on shares of a metric that falls; empty for others."""
    if schema.rising(facts.metric):
        return ""
    return f" An error is at {100 * TIMED:g} % of a value v from v / {TIMED:g} on."


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
