"""Tracks: many methods on one kind of difference between clients, with equal budgets.

A track is a study ``track-NAME`` whose partition is drawn with several seeds. Its results are in
``config/published/tracks.csv``, a line for each method and draw, so that a new method is compared
with all of them, and only the new method is trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fl.base.arithmetic import PORTABLE
from fl.base.errors import DataError
from fl.base.folders import CONFIG
from fl.base.schema import GLOBAL, MISSING, PERSONAL, SETTING, UNSEEN
from fl.plan import study_files
from fl.report import claims, kept_tracks, summaries
from fl.report.partitions import Partition
from fl.store.import_export import SOFTWARE

FILE = Path("published") / "tracks.csv"
"""File of published results in the config folder."""
START = "-start"
"""Ending of the names of entries from which others start, and which are not compared."""
BASELINE, CHECK = "fedavg-ft", "fedavg"
"""Entries with which others are compared: personalised methods with the first, methods that are
scored by their shared model with the second. The second is compared with the first, and
`fl.compare` trains it again as a check. All comparisons with one entry are a family.
"""

TUNED_AS = {"speakers": "vowel"}
"""The track whose points a track has, if it has no draws of its own to tune on."""

COST_TOLERANCE = 1.01
"""A method whose cost is one per cent above a limit is within it, as it may send a few numbers
beside the weights.
"""

COLUMNS = {
    "track": "string",
    "method": "string",
    "title": "string",
    "stage": "string",
    "draw": "int64",
    "accuracy": "float64",
    "worst_tenth": "float64",
    "errors": "float64",
    "floor": "float64",
    "bytes": "float64",
    "operations": "float64",
    "point": "string",
    "numbers": "string",
    "environment": "string",
    "rounding": "float64",
}
"""Columns of published results.

stage: the model of trained clients that is scored, ``global`` for the shared one, or ``personal``.
accuracy: mean over clients; over the clients held out of training, if there are any. worst_tenth:
mean over the worst tenth of these clients. errors: wrong test samples of all clients; floor: those
of the majority predictor (`fl.report.claims.majority_errors`); NaN if they were not counted. bytes,
operations: totals of the run and of those that it starts from, of all clients and the server.
point: the grid point that validation data chose. numbers: the versions of the code. environment:
arithmetic and software of the run, as far as they are known; empty in older tables. rounding: how
far rounding alone moves the accuracy (`with_rounding`); NaN if that was not measured.
"""


def folder_of(folder: Path) -> Path:
    """Return the config folder whose tracks are used: the package's if ``folder`` has none."""
    return folder if study_files.tracks(folder) or (folder / FILE).exists() else CONFIG


def read_published(folder: Path) -> pd.DataFrame:
    """Return the published results of all tracks.

    Raises:
        DataError: If there are none, or they cannot be read.
    """
    path = folder / FILE
    if not path.exists():
        raise DataError(f"{path}: does not exist", advice="`make compare` trains the tracks")
    try:
        blanks = {name: [""] for name in ("worst_tenth", "errors", "floor", "rounding")}
        table = pd.read_csv(path, keep_default_na=False, na_values=blanks)
        # Columns that older tables lack.
        for column in {"errors", "floor", "rounding"} - {*table}:
            table[column] = math.nan
        if "stage" not in table:
            table["stage"] = PERSONAL
        if "environment" not in table:
            table["environment"] = ""
        return table.astype(COLUMNS)[[*COLUMNS]]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def measured_lines(
    track: str,
    starts: Mapping[str, str],
    rows: pd.DataFrame,
    runs: pd.DataFrame,
    partitions: Mapping[str, Partition] | None = None,
) -> pd.DataFrame:
    """Return the lines of a track, of every draw of which no run is missing.

    Args:
        track: Name of the track.
        starts: The entry from which each entry starts, by its name.
        rows: Table of values, as `fl.report.tables.collect` gives it.
        runs: Table of runs, as `fl.report.tables.collect` gives it.
        partitions: Partitions by id, as far as known.
    """
    split = UNSEEN if (rows["split"] == UNSEEN).any() else "test"
    summary = summaries.summarise(rows, runs, "accuracy", split)
    last = summaries.complete_rows(summaries.final_rows(rows, "accuracy", split), runs)
    error_counts = claims.wrong_samples(last)
    floors = claims.majority_errors(last, runs, partitions or {}, unseen=split == UNSEEN)
    error_counts = error_counts.merge(floors.rename(columns={"errors": "floor"}), how="left")
    error_counts = error_counts.astype({"floor": "float64"})
    counts = error_counts.groupby(summaries.KEY, as_index=False)[["errors", "floor"]].mean()
    # A method is personalised even if clients held out of training get its shared model.
    personal = set(rows.loc[rows["stage"] == PERSONAL, "method"])
    stages = summary["method"].isin(personal).map({True: PERSONAL, False: GLOBAL})
    summary = summary.assign(stage=stages).merge(counts)
    places = runs["partition"].drop_duplicates().tolist()
    runs = runs[~runs["partition"].isin(runs.loc[runs["state"] == MISSING, "partition"])]
    chosen = runs[runs["selected"]].drop_duplicates([*SETTING, "method"])
    costs = _costs(chosen, starts)
    about = chosen.assign(bytes=costs["bytes"], operations=costs["operations"])
    about["environment"] = [_environment(row) for row in about.to_dict("records")]
    columns = ["method", "title", "point", "numbers", "environment", "bytes", "operations"]
    about = about[[*SETTING, *columns]]
    table = summary[summary["mean"].notna() & ~summary["method"].str.endswith(START)].merge(about)
    draws = table["partition"].map(places.index)
    table = table.assign(track=track, draw=draws, rounding=math.nan)
    table = table.rename(columns={"mean": "accuracy"})
    # Rounded as in the file, so that equal numbers are equal.
    table = table.round({"accuracy": 6, "worst_tenth": 6, "errors": 1, "floor": 1})
    return table[[*COLUMNS]].astype(COLUMNS)


def with_rounding(table: pd.DataFrame, repetitions: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return a track's lines with ``rounding``, the largest change of accuracy in repetitions.

    Args:
        table: The lines.
        repetitions: Lines of the same track, each trained with another ``rounding``
            (`fl.api.training.Training`).
    """
    key = ["track", "method", "draw"]
    accuracy = table.set_index(key)["accuracy"]
    repeated = (lines.set_index(key)["accuracy"].reindex(accuracy.index) for lines in repetitions)
    changes = pd.concat([(values - accuracy).abs() for values in repeated], axis=1)
    return table.assign(rounding=changes.max(axis=1).round(6).to_numpy())


def _environment(run: Mapping[Any, Any]) -> str:
    """Return arithmetic and software of a run of the table of runs, ``portable, torch 2.11.0``.

    The processor follows where it decides bits.
    """
    known = {key: value for key, value in run.items() if isinstance(value, str)}
    arithmetic = known.get("arithmetic", "")
    words = [arithmetic, *(f"{name} {known[name]}" for name in SOFTWARE if name in known)]
    words += [] if arithmetic == PORTABLE else [known.get("processor", "")]
    return ", ".join(filter(None, words))


def _costs(runs: pd.DataFrame, starts: Mapping[str, str]) -> pd.DataFrame:
    """Return bytes and operations of whole runs, a row for each of ``runs``."""
    counted = runs[runs["traffic"].notna()]
    costs = pd.DataFrame(map(kept_tracks.costs, counted.to_dict("records")), counted.index)
    if costs.empty:
        return pd.DataFrame({"bytes": math.nan, "operations": math.nan}, runs.index)
    mean = costs["operations"].groupby(counted["method"]).mean().to_dict()

    def start_costs(method: str) -> float:
        start = starts.get(method)
        return 0.0 if start is None else mean.get(start, math.nan) + start_costs(start)

    totals = costs["operations"] + counted["method"].map(start_costs)
    sent = costs["bytes"] + counted["bytes_before"]
    return pd.DataFrame({"bytes": sent, "operations": totals}, runs.index)


def write(folder: Path, table: pd.DataFrame) -> Path:
    """Write published results, a track's lines in the order of methods and draws."""
    path = folder / FILE
    shown = table.astype({"bytes": "int64", "operations": "int64"})
    path.write_text(shown.to_csv(index=False, lineterminator="\n"), encoding="utf-8")
    return path


def scores_of(table: pd.DataFrame, track: str, column: str = "accuracy") -> pd.DataFrame:
    """Return a track's scores, draws by methods; NaN for diverged runs."""
    lines = table[table["track"] == track]
    wide = lines.pivot(index="draw", columns="method", values=column)
    return wide[lines["method"].unique()]


def ranks(scores: pd.DataFrame) -> pd.Series:
    """Return the mean rank over draws by method, 1 for the best; a diverged run is the last."""
    return scores.rank(axis=1, ascending=False, na_option="bottom").mean()


def ranks_within(table: pd.DataFrame, track: str, cost: str, limit: float) -> pd.Series:
    """Return mean ranks among the methods of a track that cost little enough, the best first.

    Args:
        table: Results, `COLUMNS`.
        track: The track.
        cost: ``bytes`` or ``operations``, the mean over draws of whole runs.
        limit: The largest cost, as a multiple of that of `BASELINE`.
    """
    costs = table[table["track"] == track].groupby("method")[cost].mean()
    is_allowed = costs <= limit * COST_TOLERANCE * costs.get(BASELINE, math.nan)
    scores = scores_of(table, track)
    return ranks(scores.loc[:, scores.columns.map(is_allowed)]).sort_values(kind="stable")


def baselines(table: pd.DataFrame) -> dict[str, str]:
    """Return the entry with which each method is compared, by method, except `BASELINE`."""
    stages = dict(zip(table["method"], table["stage"], strict=True))
    return {
        method: CHECK if stage == GLOBAL and method != CHECK else BASELINE
        for method, stage in stages.items()
        if method != BASELINE
    }


def compare_with_baselines(table: pd.DataFrame) -> pd.DataFrame:
    """Compare each method of each track with ``other``, its entry of `baselines`.

    p-values are corrected within a ``family``: over all comparisons with one entry in all tracks.

    Returns:
        ``track, method, other, family`` and the columns of `fl.report.claims.with_verdicts`.
    """
    records = []
    baseline_of = baselines(table)
    for track in table["track"].unique():
        scores = scores_of(table, track)
        names = {m: m for m in map(str, scores)}
        lines = table[table["track"] == track]
        errors = lines.groupby("method")[["errors", "floor"]].mean()
        for method, reference in baseline_of.items():
            pair = method, reference
            pair_scores = scores.reindex(columns=pair).dropna()
            if pair_scores.empty:
                continue
            reason = claims.uninformative_reason(scores, pair, errors, names, (method,))
            key = {"track": track, "method": method, "other": reference, "family": reference}
            gains = pair_scores[method] - pair_scores[reference]
            records.append(key | claims.comparison_values(gains, reason))
    columns = ["track", "method", "other", "family", *claims.VALUE_COLUMNS]
    return claims.with_verdicts(pd.DataFrame(records, columns=columns))


def sign_tests(tests: pd.DataFrame) -> pd.DataFrame:
    """Return a sign test over tracks for each method, a row with its name as the index.

    A track counts once, by the sign of its mean difference, and not by its draws, which are of one
    data set. ``above`` of ``n`` tracks have a mean difference above 0; those without a difference
    do not count. ``p_corrected`` is within the families of `compare_with_baselines`.
    """
    signs = tests.assign(sign=np.sign(tests["difference"]))
    signs = signs[(signs["sign"] != 0) & (signs["reason"] == "")]
    tables = [pd.DataFrame(columns=["above", "n", "p_corrected"], dtype="float64")]
    for _, family in signs.groupby("family", sort=False):
        wide = family.pivot(index="method", columns="track", values="sign")
        counts = {"above": (wide > 0).sum(axis=1), "n": wide.notna().sum(axis=1)}
        p_corrected = claims.p_values(wide.to_numpy(float))[1]
        tables.append(pd.DataFrame(counts).assign(p_corrected=p_corrected))
    return pd.concat(tables)


def pareto_front(table: pd.DataFrame, cost: str) -> list[str]:
    """Return the methods on a track's Pareto front of accuracy and cost, the cheapest first.

    No method has more accuracy than one of them at no more cost.
    """
    averages = table.groupby("method", sort=False)[["accuracy", cost]].mean()
    ordered = averages.sort_values([cost, "accuracy"], ascending=[True, False])
    best = ordered["accuracy"].cummax().shift(fill_value=-1.0)
    return [*ordered.index[ordered["accuracy"] > best]]
