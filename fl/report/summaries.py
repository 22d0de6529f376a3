"""Summaries of a study's tables: means, spreads, grid points.

Spread is reported twice and never mixed: over *seeds* (how repeatable a mean is) and over
*clients* (how unevenly a method serves them).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd

from fl.base.schema import (
    COMPLETE,
    DIVERGED,
    GLOBAL,
    MISSING,
    PERSONAL,
    REWEIGHTED,
    SETTING,
    StudySetting,
    rising,
)
from fl.plan.study_plan import StudyPlan

KEY = [*SETTING, "method"]

REPORTED = "reported"
"""A column of rows: whether a row is of the stage that the report shows at that round."""
SCORED = "scored"
"""A column of rows in which another round than a run's last one counts: whether it is this."""
ATTACKS = "attacks"
"""A column of rows of a study in which clients attack: whether the row's client does."""
COUNTS = {"n_diverged": "sum", "n_missing": "sum", "n_points": "max", "n_points_there": "min"}
"""Columns that count runs and points of grids, and how those of draws are put in one."""


def evaluated_clients(plan: StudyPlan) -> dict[str, list[int]]:
    """By entry that scores models on a sample of clients: of how many, over its grid."""
    counts = {
        method: [n for n in entry.training.get("evaluate_clients", ()) if n is not None]
        for method, entry in plan.entries.items()
    }
    return {method: values for method, values in counts.items() if values}


def best_rounds(rows: pd.DataFrame, metric: str) -> pd.Series:
    """Return whether each row is of the client's best round by its validation samples.

    Of equal rounds it is the first one; of a client without validation samples it is the last
    round of its rows. Each stage has its own best round.
    """
    of = ["method", "run", "client", "stage"]
    validation = rows[(rows["metric"] == in_validation(metric)) & (rows["split"] == "val")]
    validation = validation.assign(score=validation["value"] * (-1 if rising(metric) else 1))
    first = validation.sort_values(["score", "round"]).drop_duplicates(of)
    best = rows[of].merge(first[[*of, "round"]], on=of, how="left")["round"].to_numpy()
    last = rows.groupby(["method", "run", "stage", "split", "metric"])["round"].transform("max")
    return rows["round"] == pd.Series(best, index=rows.index).fillna(last)


def in_validation(metric: str) -> str:
    """The metric by which validation data chooses for another one."""
    return "accuracy" if metric == REWEIGHTED else metric


def final(rows: pd.DataFrame, metric: str, split: str = "test") -> pd.DataFrame:
    """The reported rows of each run's last recorded round, or of that in `SCORED`, one per client.

    The stage is ``personal`` where the run has it, else ``global``.
    """
    rows = rows[(rows["metric"] == metric) & (rows["split"] == split) & rows[REPORTED]]
    run = [rows["method"], rows["run"]]
    if SCORED not in rows:
        return rows[rows["round"] == rows.groupby(run)["round"].transform("max")]
    personal = rows["stage"] == PERSONAL
    return rows[(personal == personal.groupby(run).transform("max")) & rows[SCORED]]


def complete(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The rows of complete runs at selected points."""
    return rows.merge(stored_runs(runs)[["method", "run"]], on=["method", "run"])


def stored_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """The complete runs at selected points."""
    return runs[runs["selected"] & (runs["state"] == COMPLETE)]


def points(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """One row per hyper-parameter point: validation and test means and sds over its seeds.

    ``val`` and ``test`` are means over complete seeds of the uniform mean over clients.
    """
    table = runs
    for split in ("val", "test"):
        shown = in_validation(metric) if split == "val" else metric
        scores = final(rows, shown, split).groupby(["method", "run"])["value"].mean()
        table = table.merge(scores.rename(split).reset_index(), on=["method", "run"], how="left")
    finished = table["state"] == COMPLETE
    table = table.assign(
        val=table["val"].where(finished),
        test=table["test"].where(finished),
        n_seeds=finished,
        n_diverged=table["state"] == DIVERGED,
        n_missing=table["state"] == MISSING,
    )
    grouped = table.groupby([*KEY, "point"], sort=False)
    return grouped.agg(
        val=("val", "mean"),
        val_sd_seeds=("val", "std"),
        test=("test", "mean"),
        test_sd_seeds=("test", "std"),
        n_seeds=("n_seeds", "sum"),
        n_diverged=("n_diverged", "sum"),
        n_missing=("n_missing", "sum"),
        selected=("selected", "first"),
    ).reset_index()


def summarise(
    rows: pd.DataFrame, runs: pd.DataFrame, metric: str, split: str = "test"
) -> pd.DataFrame:
    """One row per setting and method, at the selected point and the last recorded round.

    ``mean``, ``sd_seeds``: over seeds, of the uniform mean over clients (ddof 1; NaN for one
    seed). ``sd_clients``, ``worst``, ``p10``: over clients, of each client's mean over seeds;
    ``p10`` is the tenth percentile counted from the worse end, ``worst_tenth`` the mean over the
    worst tenth of the clients, at least one. ``weighted``, ``weighted_sd_seeds``: over seeds, of
    the mean over clients weighted by their samples. Only complete runs count; the others are
    counted in ``n_diverged`` and ``n_missing``. ``n_points``: of the method's grid,
    ``n_points_there``: those of which no run is missing; as long as these are fewer, another point
    may yet be selected.
    """
    last, up = complete(final(rows, metric, split), runs), rising(metric)
    seeds = _by_key(last.groupby([*KEY, "run"])["value"].mean())
    clients = _by_key(last.groupby([*KEY, "client"])["value"].mean())
    weighted = _by_key(_weighted(last, [*KEY, "run"]))
    stages, rounds = (_by_key(last.set_index(KEY)[name]) for name in ("stage", "round"))
    states, complete_points = _by_key(runs[runs["selected"]].set_index(KEY)["state"]), _points(runs)
    records = []
    for key, of_runs in states.items():
        of_seeds, of_clients, of_weighted = (
            pd.Series(values.get(key, ()), dtype="float64") for values in (seeds, clients, weighted)
        )
        worst_first = of_clients.sort_values(ascending=up)
        worst = worst_first.iloc[: max(1, math.ceil(len(worst_first) / 10))]
        records.append(
            dict(zip(KEY, key, strict=True))
            | {
                "stage": stages[key][0] if key in stages else GLOBAL,
                "round": rounds[key].max() if key in rounds else -1,
                "mean": of_seeds.mean(),
                "sd_seeds": of_seeds.std(),
                "sd_clients": of_clients.std(),
                "worst": of_clients.min() if up else of_clients.max(),
                "p10": of_clients.quantile(0.1 if up else 0.9),
                "worst_tenth": worst.mean(),
                "weighted": of_weighted.mean(),
                "weighted_sd_seeds": of_weighted.std(),
                "n_clients": len(of_clients),
                "n_seeds": len(of_seeds),
                "n_diverged": int((of_runs == DIVERGED).sum()),
                "n_missing": int((of_runs == MISSING).sum()),
                "n_points": len(complete_points[key]),
                "n_points_there": int(complete_points[key].sum()),
            }
        )
    return pd.DataFrame(records, columns=SUMMARY_COLUMNS)


def _by_key(values: pd.Series) -> dict[tuple[str, ...], np.ndarray]:
    """Return the values of each setting and method, which the first levels of the index are."""
    array, places = values.to_numpy(), values.groupby(level=KEY, sort=False).indices
    return {cast(tuple[str, ...], key): array[indices] for key, indices in places.items()}


def _points(runs: pd.DataFrame) -> dict[tuple[str, ...], np.ndarray]:
    """By setting and method, for each point of its grid, whether none of its runs is missing."""
    is_stored = runs.set_index([*KEY, "point"])["state"] != MISSING
    return _by_key(is_stored.groupby(level=[*KEY, "point"], sort=False).all())


def gaps(row: Mapping[Any, Any]) -> str:
    """Return a remark on runs that a row of `summarise` or `points` lacks, such as ``2 missing``.

    A grid with missing runs is named: its best point so far may not be its best.
    """
    words = [f"{row[f'n_{state}']} {state}" for state in (DIVERGED, MISSING) if row[f"n_{state}"]]
    planned, stored = row.get("n_points", 1), row.get("n_points_there", 1)
    if 1 < planned > stored:
        words.append(f"{stored} of {planned} grid points there")
    return ", ".join(words)


def _weighted(rows: pd.DataFrame, keys: Sequence[str]) -> pd.Series:
    """By ``keys``, the mean of ``value`` weighted by ``n``."""
    weights = rows["n"].where(rows["value"].notna(), 0)
    groups = [rows[key] for key in keys]
    return (rows["value"] * weights).groupby(groups).sum() / weights.groupby(groups).sum()


SUMMARY_COLUMNS = [
    *KEY,
    *("stage", "round", "mean", "sd_seeds", "sd_clients", "worst", "p10"),
    *("worst_tenth", "weighted", "weighted_sd_seeds"),
    *("n_clients", "n_seeds", "n_diverged", "n_missing", "n_points", "n_points_there"),
]


def over_clients(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Setting, method, client and ``value``: its final test value, mean over seeds."""
    last = complete(final(rows, metric), runs)
    return last.groupby([*KEY, "client"], sort=False)["value"].mean().reset_index()


def stages(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Setting, method, seed, client, ``before`` and ``after`` for methods with both stages.

    ``before`` is the value of the shared model, ``after`` of the client's own: in the last recorded
    round, or each in that of `SCORED`.
    """
    rows = complete(rows[(rows["metric"] == metric) & (rows["split"] == "test")], runs)
    last = rows.groupby(["method", "run", "stage"])["round"].transform("max")
    is_final = rows[SCORED] if SCORED in rows else rows["round"] == last
    rows, index = rows[is_final], [*KEY, "seed", "client"]
    shared_values = rows[rows["stage"] == GLOBAL].set_index(index)["value"].rename("before")
    personal_values = rows[rows["stage"] == PERSONAL].set_index(index)["value"].rename("after")
    return shared_values.to_frame().join(personal_values, how="inner").reset_index()


def personalisation(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the scores before and after personalisation, a row for each setting and method.

    They are means and standard deviations over seeds, with the gain; ``better`` is the share of
    clients whose own model is better, each by its mean over seeds.
    """
    values = stages(rows, runs, metric)
    values["gain"] = values["after"] - values["before"]
    clients = values.groupby([*KEY, "client"], sort=False)["gain"].mean()
    better = (clients * (1 if rising(metric) else -1) > 1e-12).groupby(KEY, sort=False).mean()
    seeds = values.groupby([*KEY, "seed"], sort=False)[["before", "after", "gain"]].mean()
    grouped = seeds.groupby(KEY, sort=False)
    table = grouped.mean().join(grouped.std().add_suffix("_sd_seeds"))
    return table.join(better.rename("better")).reset_index()


def over_draws(
    frame: pd.DataFrame,
    settings: SettingByScenario,
    spreads: Mapping[str, str],
    keys: Sequence[str] = KEY,
) -> pd.DataFrame:
    """Return one row for all draws of a setting instead of one row for each draw.

    A draw counts by its value, which can itself be a mean over training seeds. Numbers become means
    over the draws that have them, counts (`COUNTS`) sums or bounds, truths sums, ``n_seeds`` the
    number of draws; of all other values the first one stays.

    Args:
        frame: A row for each draw, with the columns `SETTING`.
        settings: Setting of each data set, partition and model.
        spreads: Column of the standard deviation over draws, by column of the mean.
        keys: Columns that identify a row, with `SETTING`.
    """
    frame = without_draws(frame, settings)
    numbers = frame.columns[[pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]]
    ways = {name: "mean" if name in numbers else "first" for name in frame if name not in keys}
    ways |= {name: "sum" for name in ways if frame[name].dtype == bool}
    ways |= {name: way for name, way in COUNTS.items() if name in ways}
    grouped = frame.groupby([*keys], sort=False)
    table = grouped.agg(ways)
    for value, deviation in spreads.items():
        table[deviation] = grouped[value].std()
    first = next(iter(spreads), None)
    if first is not None and "n_seeds" in table:
        table["n_seeds"] = grouped[first].count()
    return table.reset_index()[[*frame.columns]]


SettingByScenario = Mapping[StudySetting, StudySetting]
"""By data set, partition and model of a run, those of its setting, without the seeds of draws."""


def setting_by_scenario(plan: StudyPlan) -> SettingByScenario:
    """Return the setting of each data set, partition and model of a study's plan."""
    settings = {
        setting.id: (setting.dataset, setting.partition, setting.model) for setting in plan.settings
    }
    return {(run.dataset, run.partition, run.model): settings[run.setting] for run in plan.runs}


def without_draws(frame: pd.DataFrame, settings: SettingByScenario) -> pd.DataFrame:
    """Return ``frame`` with the columns `SETTING` of settings instead of their draws."""
    codes, scenarios = pd.factorize(pd.MultiIndex.from_frame(frame[SETTING]))
    columns = zip(*(settings[scenario] for scenario in scenarios), strict=True)
    values = {
        kind: np.array(texts, dtype=object)[codes]
        for kind, texts in zip(SETTING, columns, strict=False)
    }
    return frame.assign(**values) if len(frame) else frame
