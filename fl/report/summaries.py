"""Summaries of a study's tables: means, spreads, grid points, curves, and rounds to a value.

Spread is reported twice and never mixed: over *seeds* (how repeatable a mean is) and over
*clients* (how unevenly a method serves them).

In curves, and in counts of rounds, time and bytes, a run that starts from another run's model
continues where that run ended.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd

from fl.base.schema import (
    CLOCK,
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
"""Column of rows: whether a row is of the stage that the report shows at that round."""
SCORED = "scored"
"""Column of rows if another round than a run's last one counts: whether it is the row's round."""
ATTACKS = "attacks"
"""Column of rows of a study with attacks: whether the row's client attacks."""
COUNTS = {"n_diverged": "sum", "n_missing": "sum", "n_points": "max", "n_complete_points": "min"}
"""Columns that count runs and grid points, and how the counts of draws are combined."""

SUMMARY_COLUMNS = [
    *KEY,
    *("stage", "round", "mean", "sd_seeds", "sd_clients", "worst", "p10"),
    *("worst_tenth", "weighted", "weighted_sd_seeds"),
    *("n_clients", "n_seeds", "n_diverged", "n_missing", "n_points", "n_complete_points"),
]

SettingByScenario = Mapping[StudySetting, StudySetting]
"""Data set, partition and model of a setting, without seeds of draws, by those of a scenario."""

PACE_SHARES = (0.9, 0.95, 0.99)
"""Shares of a method's final value to which rounds are counted."""

TIMED_SHARE = 0.95
"""Share of the final value to which time and bytes are counted."""

CURVE_COLUMNS = [*KEY, "title", "seed", "round", "client", "metric", "value", "seconds", "bytes"]
CURVE_COLUMNS += ["simulated_seconds"]


def evaluated_clients(plan: StudyPlan) -> dict[str, list[int]]:
    """Return the sizes of the samples of clients on which models are scored, by entry.

    An entry with a grid can have several sizes; entries that score all clients are left out.
    """
    counts = {
        method: [n for n in entry.training.get("evaluate_clients", ()) if n is not None]
        for method, entry in plan.entries.items()
    }
    return {method: values for method, values in counts.items() if values}


def best_rounds(rows: pd.DataFrame, metric: str) -> pd.Series:
    """Return whether each row is of the client's best round by its validation samples.

    If rounds are equal, the first one is the best; for a client without validation samples, the
    last one. Each stage has its own best round.
    """
    of = ["method", "run", "client", "stage"]
    validation = rows[(rows["metric"] == in_validation(metric)) & (rows["split"] == "val")]
    validation = validation.assign(score=validation["value"] * (-1 if rising(metric) else 1))
    first = validation.sort_values(["score", "round"]).drop_duplicates(of)
    best = rows[of].merge(first[[*of, "round"]], on=of, how="left")["round"].to_numpy()
    last = rows.groupby(["method", "run", "stage", "split", "metric"])["round"].transform("max")
    return rows["round"] == pd.Series(best, index=rows.index).fillna(last)


def in_validation(metric: str) -> str:
    """Return the metric on validation data by which a round or point is chosen for a metric."""
    return "accuracy" if metric == REWEIGHTED else metric


def final_rows(rows: pd.DataFrame, metric: str, split: str = "test") -> pd.DataFrame:
    """Return the reported rows of each run's last round, or of that in `SCORED`, one per client.

    The stage is ``personal`` if the run has it, else ``global``.
    """
    rows = rows[(rows["metric"] == metric) & (rows["split"] == split) & rows[REPORTED]]
    run = [rows["method"], rows["run"]]
    if SCORED not in rows:
        return rows[rows["round"] == rows.groupby(run)["round"].transform("max")]
    personal = rows["stage"] == PERSONAL
    return rows[(personal == personal.groupby(run).transform("max")) & rows[SCORED]]


def complete_rows(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of complete runs at selected points."""
    return rows.merge(stored_runs(runs)[["method", "run"]], on=["method", "run"])


def stored_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the complete runs at selected points."""
    return runs[runs["selected"] & (runs["state"] == COMPLETE)]


def grid_points(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a row for each grid point: validation and test means and sds over its seeds.

    ``val`` and ``test`` are means over complete seeds of the uniform mean over clients.
    """
    table = runs
    for split in ("val", "test"):
        shown = in_validation(metric) if split == "val" else metric
        scores = final_rows(rows, shown, split).groupby(["method", "run"])["value"].mean()
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
    """Return a row for each setting and method, at the selected point and the last round.

    ``mean``, ``sd_seeds``: over seeds, of the uniform mean over clients (ddof 1; NaN for one
    seed). ``sd_clients``, ``worst``, ``p10``: over clients, of each client's mean over seeds;
    ``p10`` is the tenth percentile counted from the worse end, ``worst_tenth`` the mean over the
    worst tenth of the clients, at least one. ``weighted``, ``weighted_sd_seeds``: over seeds, of
    the mean over clients weighted by their samples. Means are over complete runs; the others are
    counted in ``n_diverged`` and ``n_missing``. ``n_points`` is the number of the method's grid
    points, ``n_complete_points`` the number of those without missing runs; while these are fewer,
    the selected point may still change.
    """
    last, up = complete_rows(final_rows(rows, metric, split), runs), rising(metric)
    seeds = _by_key(last.groupby([*KEY, "run"])["value"].mean())
    clients = _by_key(last.groupby([*KEY, "client"])["value"].mean())
    weighted = _by_key(_weighted(last, [*KEY, "run"]))
    stages, rounds = (_by_key(last.set_index(KEY)[name]) for name in ("stage", "round"))
    states, complete_points = (
        _by_key(runs[runs["selected"]].set_index(KEY)["state"]),
        _complete_points(runs),
    )
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
                "n_complete_points": int(complete_points[key].sum()),
            }
        )
    return pd.DataFrame(records, columns=SUMMARY_COLUMNS)


def _by_key(values: pd.Series) -> dict[tuple[str, ...], np.ndarray]:
    """Return the values by setting and method, the first levels of the index."""
    array, places = values.to_numpy(), values.groupby(level=KEY, sort=False).indices
    return {cast(tuple[str, ...], key): array[indices] for key, indices in places.items()}


def _complete_points(runs: pd.DataFrame) -> dict[tuple[str, ...], np.ndarray]:
    """Return whether no run is missing, for each grid point, by setting and method."""
    is_stored = runs.set_index([*KEY, "point"])["state"] != MISSING
    return _by_key(is_stored.groupby(level=[*KEY, "point"], sort=False).all())


def gaps(row: Mapping[Any, Any]) -> str:
    """Return a remark on missing runs of a row of `summarise` or `grid_points`: ``2 missing``.

    It also names a grid with missing runs, whose choice waits for them.
    """
    words = [f"{row[f'n_{state}']} {state}" for state in (DIVERGED, MISSING) if row[f"n_{state}"]]
    planned, stored = row.get("n_points", 1), row.get("n_complete_points", 1)
    if 1 < planned > stored:
        words.append(f"preliminary choice: {stored} of {planned} grid points complete")
    return ", ".join(words)


def _weighted(rows: pd.DataFrame, keys: Sequence[str]) -> pd.Series:
    """Return means of ``value`` weighted by ``n``, by ``keys``."""
    weights = rows["n"].where(rows["value"].notna(), 0)
    groups = [rows[key] for key in keys]
    return (rows["value"] * weights).groupby(groups).sum() / weights.groupby(groups).sum()


def over_clients(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the final test ``value`` of each setting, method and client, mean over seeds."""
    last = complete_rows(final_rows(rows, metric), runs)
    return last.groupby([*KEY, "client"], sort=False)["value"].mean().reset_index()


def stage_values(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return ``before`` and ``after`` by setting, method, seed and client, for methods with both.

    ``before`` is the value of the shared model, ``after`` that of the client's own model, in the
    last round or that of `SCORED`.
    """
    rows = complete_rows(rows[(rows["metric"] == metric) & (rows["split"] == "test")], runs)
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
    values = stage_values(rows, runs, metric)
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
    over the draws that have them, counts (`COUNTS`) become sums or bounds, and truth values become
    counts. ``n_seeds`` becomes the number of draws. Of other values, the first one is taken.

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


def setting_by_scenario(plan: StudyPlan) -> SettingByScenario:
    """Return the setting of each data set, partition and model of a study's plan."""
    settings = {
        setting.id: (setting.dataset, setting.partition, setting.model) for setting in plan.settings
    }
    return {(run.dataset, run.partition, run.model): settings[run.setting] for run in plan.runs}


def without_draws(frame: pd.DataFrame, settings: SettingByScenario) -> pd.DataFrame:
    """Return ``frame`` with the columns `SETTING` of settings instead of their draws."""
    if frame.empty:
        return frame
    codes, scenarios = pd.factorize(pd.MultiIndex.from_frame(frame[SETTING]))
    columns = zip(*(settings[scenario] for scenario in scenarios), strict=True)
    values = {
        kind: np.array(texts, dtype=object)[codes]
        for kind, texts in zip(SETTING, columns, strict=True)
    }
    return frame.assign(**values)


def curves(rows: pd.DataFrame, runs: pd.DataFrame, split: str = "test") -> pd.DataFrame:
    """Return a row for each setting, method, seed, round, client and metric: `CURVE_COLUMNS`.

    Runs are complete, at selected points. ``value`` is that of the reported stage. ``round`` also
    counts the rounds of the model that a run starts from. ``seconds`` until the round are a share
    of the run's seconds, as if all rounds took the same time; ``bytes`` are those that all
    participants received and sent, and with devices those of other clients, too. They are NaN if a
    run's record lacks them. ``simulated_seconds`` are NaN without devices.
    """
    chosen = _with_simulated_seconds(rows, rows[(rows["split"] == split) & rows[REPORTED]])
    rows = _with_totals(chosen, runs)
    titles = runs[["method", "title"]].drop_duplicates("method")
    order = [*KEY, "seed", "metric", "round", "client"]
    rows = rows.merge(titles, on="method").sort_values(order, kind="stable", ignore_index=True)
    return rows[CURVE_COLUMNS]


def _with_simulated_seconds(rows: pd.DataFrame, chosen: pd.DataFrame) -> pd.DataFrame:
    """Add ``simulated_seconds`` until the end of each row's round; NaN without devices.

    Args:
        rows: Table of values, with the rows of the clock.
        chosen: Those to which the column is added, with ``run`` and ``round``.
    """
    clock = rows[(rows["split"] == CLOCK) & (rows["metric"] == "seconds")]
    seconds = clock.drop_duplicates(["run", "round"]).set_index(["run", "round"])["value"]
    return chosen.join(seconds.rename("simulated_seconds"), on=["run", "round"])


def run_curves(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the value, the seconds and the bytes of every run after every evaluated round.

    ``value`` is the uniform test mean over clients in the reported stage; ``seconds``, ``bytes``
    and ``simulated_seconds`` are sums from the beginning.
    """
    all_rows = rows
    rows = rows[(rows["metric"] == metric) & (rows["split"] == "test") & rows[REPORTED]]
    keys = [*KEY, "run", "round"]
    averages = rows.groupby(keys, sort=False)["value"].mean().reset_index()
    averages = _with_simulated_seconds(all_rows, averages)
    return _with_totals(averages, runs).sort_values("round", kind="stable", ignore_index=True)


def mean_curves(
    rows: pd.DataFrame,
    runs: pd.DataFrame,
    metric: str,
    placed: Callable[[pd.DataFrame], pd.DataFrame] = lambda frame: frame,
) -> pd.DataFrame:
    """Return ``mean`` and ``sd_seeds`` of `run_curves` by setting, method and round.

    Only rounds that all runs of a method have are returned: if some stop early, a mean over the
    others would be of another population.

    Args:
        rows: Table of values, as `fl.report.tables.collect` gives it.
        runs: Table of runs, as `fl.report.tables.collect` gives it.
        metric: The metric.
        placed: Function that replaces the draws of a frame by their settings, if means over draws
            follow, so that rounds are those that the runs of all draws have.
    """
    lines = run_curves(rows, runs, metric)
    grouped_runs = placed(lines).groupby(KEY, sort=False)["run"].transform("nunique")
    present_runs = placed(lines).groupby([*KEY, "round"], sort=False)["run"].transform("nunique")
    lines = lines[present_runs == grouped_runs]
    grouped = lines.groupby([*KEY, "round"], sort=False)["value"]
    return grouped.agg(mean="mean", sd_seeds="std").reset_index().sort_values("round")


def pace(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the rounds, seconds and bytes that each run takes to shares of the final value.

    Rounds are counted to each of `PACE_SHARES` of the run's final value (`final_rows`), and to
    `TIMED_SHARE` of the ``best`` final value of its setting; ``seconds`` and ``bytes`` to
    `TIMED_SHARE` of its own. An error reaches a share s of a value v at v / s. NaN if a run never
    reaches it, or if the costs of the runs that it starts from are not known.
    """
    up = rising(metric)
    scores = final_rows(rows, metric).groupby(["method", "run"])["value"].mean().rename("final")
    lines = run_curves(rows, runs, metric).join(scores, on=["method", "run"])
    records = []
    for _, setting in lines.groupby(SETTING, sort=False):
        finals = setting.groupby(["method", "run"])["final"].first().groupby("method").mean()
        best = finals.max() if up else finals.min()
        for key, run in setting.groupby([*KEY, "run"], sort=False):
            values, final = run["value"].to_numpy(), run["final"].iloc[0]
            goals = {str(share): (final, share) for share in PACE_SHARES}
            goals |= {"best": (best, TIMED_SHARE)}
            record = dict(zip([*KEY, "run"], key, strict=True))
            for name, (goal, share) in goals.items():
                record[name] = _at(run["round"], _first_at_share(values, goal, share, up))
            place = _first_at_share(values, final, TIMED_SHARE, up)
            records.append(record | {name: _at(run[name], place) for name in ("seconds", "bytes")})
    names = [*KEY, "run", *map(str, PACE_SHARES), "best", "seconds", "bytes"]
    return pd.DataFrame(records, columns=names)


def _first_at_share(values: np.ndarray, goal: float, share: float, up: bool) -> int | None:
    """Return the place of the first value at a share of ``goal``; ``up``: if values rise."""
    is_there = values >= share * goal - 1e-12 if up else values <= goal / share + 1e-12
    return int(is_there.argmax()) if is_there.any() else None


def _at(column: pd.Series, place: int | None) -> Any:
    """Return the entry of a column at a place; NaN without one, or if it is unknown."""
    return np.nan if place is None or pd.isna(column.iloc[place]) else column.iloc[place]


def _with_totals(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Add ``seconds`` and ``bytes`` until each round, and complete ``simulated_seconds``.

    All are counted from the beginning of the first run of a chain of starts. Only rows of complete
    runs at selected points are returned, and no rows of a run if the number of rounds before it is
    not known.
    """
    rows = complete_rows(rows, runs)
    table = runs.drop_duplicates("run").set_index("run")
    rounds_before = rows["run"].map(table["rounds_before"])
    rows, rounds_before = rows[rounds_before.notna()], rounds_before.dropna().astype("int64")
    # As if all rounds of a run took the same time.
    lengths = table["rounds"].astype("float64")
    pace = table["seconds"] / lengths.where(lengths > 0)
    seconds = rows["run"].map(table["seconds_before"]) + rows["run"].map(pace) * rows["round"]
    used = table.loc[rows["run"].unique()]
    sent = dict(zip(used.index, map(_total_bytes, used.to_dict("records")), strict=True))
    bytes_by_round = rows[["run", "round"]].drop_duplicates()
    bytes_by_round["bytes"] = [
        sent[run][number] for run, number in bytes_by_round.itertuples(index=False)
    ]
    simulated_before = rows["run"].map(table["simulated_before"]).astype("float64")
    # The clock has no row of round 0, the stored model that a run starts from.
    begins = (rows["round"] == 0) & (simulated_before > 0)
    simulated = rows["simulated_seconds"].mask(begins, 0.0) + simulated_before
    rows = rows.assign(seconds=seconds, simulated_seconds=simulated)
    rows = rows.merge(bytes_by_round, on=["run", "round"], how="left")
    return rows.assign(round=rows["round"] + rounds_before.to_numpy())


def whole_costs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return complete runs at selected points with what they cost, starts included.

    ``whole_seconds`` and ``whole_bytes``, of all participants, down and up, count the runs from
    whose model a run starts; NaN if unknown.
    """
    runs = stored_runs(runs)
    totals = [_total_bytes(run)[-1] for run in runs.to_dict("records")]
    seconds = runs["seconds"] + runs["seconds_before"]
    return runs.assign(whole_seconds=seconds, whole_bytes=np.array(totals, dtype="float64"))


def _total_bytes(run: dict[Any, Any]) -> np.ndarray:
    """Return bytes of all participants until each round, from round 0; NaN if unknown."""
    total = np.full(int(run["rounds"]) + 1, np.nan)
    if pd.notna(run["traffic"]):
        stretches = np.array(json.loads(run["traffic"]), dtype="float64").reshape(-1, 3)
        bytes_by_round = np.repeat(stretches[:, 1] + stretches[:, 2], stretches[:, 0].astype(int))
        until = run["bytes_before"] + int(run["participants"]) * np.cumsum([0.0, *bytes_by_round])
        count = min(len(total), len(until))
        total[:count] = until[:count]
    return total
