"""Tracks: many methods on one kind of difference between clients, with equal budgets.

A track is a study ``track-NAME`` whose partition is drawn with several seeds. Its results are kept
in ``config/published/tracks.csv``, a line for each method and draw, so that a method of one's own
is compared with all of them and trains alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fl.base.errors import DataError
from fl.base.schema import MISSING, SETTING, UNSEEN
from fl.report import claims, summaries

FILE = Path("published") / "tracks.csv"
"""In the config folder."""
PREFIX = "track-"
"""What names of the studies begin with."""
START = "-start"
"""What names of entries end with that are there for others to start from, and are not compared."""
BASELINE, CHECK = "fedavg-ft", "fedavg"
"""The entry that all are compared with, and the one that is trained again as a check."""

COLUMNS = {
    "track": "string",
    "method": "string",
    "title": "string",
    "draw": "int64",
    "accuracy": "float64",
    "worst_tenth": "float64",
    "errors": "float64",
    "bytes": "float64",
    "operations": "float64",
    "point": "string",
    "numbers": "string",
}
"""Of the kept table. accuracy: mean over clients; where some are held out of training, over these.
worst_tenth: mean over the worst tenth of them. errors: wrong test samples of all clients; NaN where
they were not counted. bytes, operations: of the whole run, all clients and the server, and of what
it starts from. point: what validation data chose. numbers: the versions of the code.
"""


def studies(folder: Path) -> list[str]:
    """The names of the tracks' studies in a config folder."""
    return sorted(path.stem for path in (folder / "studies").glob(f"{PREFIX}*.yaml"))


def read_published(folder: Path) -> pd.DataFrame:
    """The kept table; `DataError` where there is none."""
    path = folder / FILE
    if not path.exists():
        raise DataError(f"{path}: is not there; `make compare` trains the tracks and writes it")
    try:
        blanks = {"worst_tenth": [""], "errors": [""]}
        table = pd.read_csv(path, keep_default_na=False, na_values=blanks)
        if "errors" not in table:
            table["errors"] = math.nan
        return table.astype(COLUMNS)[[*COLUMNS]]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def measured(
    track: str, starts: Mapping[str, str], rows: pd.DataFrame, runs: pd.DataFrame
) -> pd.DataFrame:
    """Return the lines of a track, of every draw of which no run is missing.

    Args:
        track: Name of the track.
        starts: The entry from which each entry starts, by its name.
        rows: Table of values, as `fl.report.tables.collect` gives it.
        runs: Table of runs, as `fl.report.tables.collect` gives it.
    """
    split = UNSEEN if (rows["split"] == UNSEEN).any() else "test"
    summary = summaries.summarise(rows, runs, "accuracy", split)
    last = summaries.final(rows, "accuracy", split)
    wrong = claims.wrong_samples(last).groupby(summaries.KEY, as_index=False)["errors"].mean()
    summary = summary.merge(wrong)
    places = runs["partition"].drop_duplicates().tolist()
    runs = runs[~runs["partition"].isin(runs.loc[runs["state"] == MISSING, "partition"])]
    chosen = runs[runs["selected"]].drop_duplicates([*SETTING, "method"])
    costs = _costs(chosen, starts)
    about = chosen.assign(bytes=costs["bytes"], operations=costs["operations"])
    about = about[[*SETTING, "method", "title", "point", "numbers", "bytes", "operations"]]
    table = summary[summary["mean"].notna() & ~summary["method"].str.endswith(START)].merge(about)
    table = table.assign(track=track, draw=table["partition"].map(places.index))
    table = table.rename(columns={"mean": "accuracy"})
    # As they are kept, so that what is equal is seen to be.
    table = table.round({"accuracy": 6, "worst_tenth": 6, "errors": 1})
    return table[[*COLUMNS]].astype(COLUMNS)


def _costs(runs: pd.DataFrame, starts: Mapping[str, str]) -> pd.DataFrame:
    """Bytes and operations of whole runs, a line for each of ``runs``."""

    def sent(row: Mapping[Any, Any]) -> float:
        stretches = json.loads(row["traffic"]) if isinstance(row["traffic"], str) else []
        exchanged = row["participants"] * sum(n * (down + up) for n, down, up in stretches)
        return float(exchanged + row["bytes_before"])

    def computed(row: Mapping[Any, Any]) -> float:
        return float(row["rounds"] * (row["participants"] * row["flops"] + row["flops_server"]))

    counted = runs[runs["traffic"].notna()]
    if counted.empty:
        return pd.DataFrame({"bytes": math.nan, "operations": math.nan}, runs.index)
    costs = counted.apply(computed, axis=1)
    mean = costs.groupby(counted["method"]).mean().to_dict()

    def start_costs(method: str) -> float:
        start = starts.get(method)
        return 0.0 if start is None else mean.get(start, math.nan) + start_costs(start)

    total = costs + counted["method"].map(start_costs)
    return pd.DataFrame({"bytes": counted.apply(sent, axis=1), "operations": total}, runs.index)


def write(folder: Path, table: pd.DataFrame) -> Path:
    """Write the kept table, a track's lines in the order of methods and draws."""
    path = folder / FILE
    shown = table.astype({"bytes": "int64", "operations": "int64"})
    path.write_text(shown.to_csv(index=False, lineterminator="\n"), encoding="utf-8")
    return path


def values(table: pd.DataFrame, track: str, column: str = "accuracy") -> pd.DataFrame:
    """Return a track's scores, draws by methods; NaN for diverged runs."""
    lines = table[table["track"] == track]
    wide = lines.pivot(index="draw", columns="method", values=column)
    return wide[lines["method"].unique()]


def ranks(scores: pd.DataFrame) -> pd.Series:
    """By method, the mean over draws of its rank, 1 for the best; a diverged run comes last."""
    return scores.rank(axis=1, ascending=False, na_option="bottom").mean()


def friedman(scores: pd.DataFrame) -> tuple[float, float]:
    """The statistic of Friedman's test that all methods rank alike, and its p-value."""
    from scipy.stats import friedmanchisquare

    statistic, p = friedmanchisquare(*scores.fillna(-1).T.to_numpy())
    return float(statistic), float(p)


def critical_difference(methods: int, draws: int) -> float:
    """Return the critical difference of mean ranks by Nemenyi's test at 5 %.

    It is ``q sqrt(k (k + 1) / 6 n)`` (Demšar, JMLR 2006, section 3.2.2); mean ranks that differ by
    less are not told apart.
    """
    from scipy.stats import studentized_range

    q = studentized_range.ppf(1 - claims.LEVEL, methods, np.inf) / math.sqrt(2)
    return float(q * math.sqrt(methods * (methods + 1) / (6 * draws)))


def against(
    table: pd.DataFrame, method: str | None = None, reference: str = BASELINE
) -> pd.DataFrame:
    """Compare each method of each track with ``other``, or ``method`` with all others.

    p-values are corrected over all comparisons.

    Returns:
        ``track, method, other`` and the columns of `fl.report.claims.judged`.
    """
    records = []
    for track in table["track"].unique():
        scores = values(table, track)
        names = {m: m for m in map(str, scores)}
        errors = table[table["track"] == track].groupby("method")["errors"].mean()
        mates = [m for m in names if m != (method or reference)]
        for pair in [(m, reference) if method is None else (method, m) for m in mates]:
            pair_scores = scores.reindex(columns=pair).dropna()
            if pair_scores.empty:
                continue
            first, second = pair
            judged = (first,) if method is None else (second,)
            reason = claims.uninformative(scores, pair, errors.dropna().to_dict(), names, judged)
            key = {"track": track, "method": first, "other": second}
            records.append(
                key | claims.tested((pair_scores[first] - pair_scores[second]).tolist(), reason)
            )
    columns = ["track", "method", "other", "n", "difference", "low", "high", "p", "reason"]
    return claims.judged(pd.DataFrame(records, columns=columns))


def front(table: pd.DataFrame, cost: str) -> list[str]:
    """Return the methods on a track's Pareto front of accuracy and cost, the cheapest first.

    No method has more accuracy than one of them at no more cost.
    """
    averages = table.groupby("method", sort=False)[["accuracy", cost]].mean()
    ordered = averages.sort_values([cost, "accuracy"], ascending=[True, False])
    best = ordered["accuracy"].cummax().shift(fill_value=-1.0)
    return [*ordered.index[ordered["accuracy"] > best]]
