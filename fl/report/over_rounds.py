"""A study round by round: curves, and the rounds, time and bytes until a value is reached.

A run that starts from another's model goes on where that one ended: its rounds, seconds and bytes
are counted from the very beginning.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from fl.base.schema import SETTING, rising
from fl.report.summaries import KEY, REPORTED, complete, final

SHARES = (0.9, 0.95, 0.99)
"""Of a method's final value, to which rounds are counted."""
TIMED = 0.95
"""The share to which time and bytes are counted, too."""

CURVE_COLUMNS = [*KEY, "title", "seed", "round", "client", "metric", "value", "seconds", "bytes"]


def curves(rows: pd.DataFrame, runs: pd.DataFrame, split: str = "test") -> pd.DataFrame:
    """A row for each setting, method, seed, round, client and metric, in `CURVE_COLUMNS`.

    Of complete runs at selected points. ``value`` is that of the reported stage, ``round`` counts
    the rounds behind the model that a run starts from. ``seconds`` of the run's work until then are
    taken to pass evenly over its rounds; ``bytes`` are those that all participants received and
    sent. NaN where a run does not tell.
    """
    rows = _placed(rows[(rows["split"] == split) & rows[REPORTED]], runs)
    titles = runs[["method", "title"]].drop_duplicates("method")
    order = [*KEY, "seed", "metric", "round", "client"]
    rows = rows.merge(titles, on="method").sort_values(order, kind="stable", ignore_index=True)
    return rows[CURVE_COLUMNS]


def followed(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the value, the seconds and the bytes of every run after every evaluated round.

    ``value`` is the uniform test mean over clients in the reported stage; ``seconds`` and
    ``bytes`` are sums from the beginning.
    """
    rows = rows[(rows["metric"] == metric) & (rows["split"] == "test") & rows[REPORTED]]
    keys = [*KEY, "run", "round"]
    averages = rows.groupby(keys, sort=False)["value"].mean().reset_index()
    return _placed(averages, runs).sort_values("round", kind="stable", ignore_index=True)


def over_seeds(
    rows: pd.DataFrame,
    runs: pd.DataFrame,
    metric: str,
    placed: Callable[[pd.DataFrame], pd.DataFrame] = lambda frame: frame,
) -> pd.DataFrame:
    """Setting, method, round, ``mean`` and ``sd_seeds`` of what is `followed`, by round.

    Only rounds that all runs of a method have: where some stop early, a mean over the others would
    be of another population.

    Args:
        rows: Table of values, as `fl.report.tables.collect` gives it.
        runs: Table of runs, as `fl.report.tables.collect` gives it.
        metric: The metric.
        placed: Function that replaces the draws of a frame by their settings if means over these
            follow, so that rounds are those of the runs of all draws.
    """
    lines = followed(rows, runs, metric)
    grouped_runs = placed(lines).groupby(KEY, sort=False)["run"].transform("nunique")
    present_runs = placed(lines).groupby([*KEY, "round"], sort=False)["run"].transform("nunique")
    lines = lines[present_runs == grouped_runs]
    grouped = lines.groupby([*KEY, "round"], sort=False)["value"]
    return grouped.agg(mean="mean", sd_seeds="std").reset_index().sort_values("round")


def reached(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the rounds, seconds and bytes that each run takes to shares of the final value.

    Rounds are to each of `SHARES` of the run's final value (`fl.report.summaries.final`), and to
    `TIMED` of the ``best`` final value of its setting; ``seconds`` and ``bytes`` are to `TIMED` of
    its own. An error falls to a share s of a value v at v / s. NaN if a run never gets there, or if
    the costs of the runs that it starts from are not known.
    """
    up = rising(metric)
    scores = final(rows, metric).groupby(["method", "run"])["value"].mean().rename("final")
    lines = followed(rows, runs, metric).join(scores, on=["method", "run"])
    records = []
    for _, setting in lines.groupby(SETTING, sort=False):
        finals = setting.groupby(["method", "run"])["final"].first().groupby("method").mean()
        best = finals.max() if up else finals.min()
        for key, run in setting.groupby([*KEY, "run"], sort=False):
            goal = run["final"].iloc[0]
            timed = _first(run, goal, TIMED, up)
            record = dict(zip([*KEY, "run"], key, strict=True))
            record |= {str(share): _first(run, goal, share, up)["round"] for share in SHARES}
            record |= {"best": _first(run, best, TIMED, up)["round"]}
            records.append(record | {name: timed[name] for name in ("seconds", "bytes")})
    names = [*KEY, "run", *map(str, SHARES), "best", "seconds", "bytes"]
    return pd.DataFrame(records, columns=names)


def _first(run: pd.DataFrame, goal: float, share: float, up: bool) -> dict[Any, Any]:
    """The first round of a run at a share of ``goal``, from below if values rise (``up``)."""
    values = run["value"]
    reached = run[values >= share * goal - 1e-12 if up else values <= goal / share + 1e-12]
    if reached.empty:
        return dict.fromkeys(("round", "seconds", "bytes"), np.nan)
    return reached.iloc[0].to_dict()


def _placed(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Add ``seconds`` and ``bytes`` until each round, counted from the beginning.

    Only complete runs at selected points are kept. Rows of a run are left out if
    the number of rounds before it is not known.
    """
    rows = complete(rows, runs)
    table = runs.drop_duplicates("run").set_index("run")
    rounds_before = rows["run"].map(table["rounds_before"])
    rows, rounds_before = rows[rounds_before.notna()], rounds_before.dropna().astype("int64")
    # Time is taken to pass evenly over a run's rounds.
    lengths = table["rounds"].astype("float64")
    pace = table["seconds"] / lengths.where(lengths > 0)
    seconds = rows["run"].map(table["seconds_before"]) + rows["run"].map(pace) * rows["round"]
    sent = {run: _sent(table.loc[run].to_dict()) for run in rows["run"].unique()}
    bytes_by_round = rows[["run", "round"]].drop_duplicates()
    bytes_by_round["bytes"] = [
        sent[run][number] for run, number in bytes_by_round.itertuples(index=False)
    ]
    rows = rows.assign(seconds=seconds).merge(bytes_by_round, on=["run", "round"], how="left")
    return rows.assign(round=rows["round"] + rounds_before.to_numpy())


def _sent(run: dict[Any, Any]) -> np.ndarray:
    """Bytes of all participants until the end of each round, from round 0; NaN if unknown."""
    total = np.full(int(run["rounds"]) + 1, np.nan)
    if pd.notna(run["traffic"]):
        stretches = np.array(json.loads(run["traffic"]), dtype="float64").reshape(-1, 3)
        bytes_by_round = np.repeat(stretches[:, 1] + stretches[:, 2], stretches[:, 0].astype(int))
        until = run["bytes_before"] + int(run["participants"]) * np.cumsum([0.0, *bytes_by_round])
        count = min(len(total), len(until))
        total[:count] = until[:count]
    return total
