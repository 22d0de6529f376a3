"""Summaries of a study's tables: means, spreads, grid points, each method against the baseline.

Spread is reported twice and never mixed: over *seeds* (how repeatable a mean is) and over
*clients* (how unevenly a method serves them).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from fl.base.schema import COMPLETE, DIVERGED, GLOBAL, MISSING, PERSONAL, REWEIGHTED, SETTING


def rising(metric: str) -> bool:
    """Whether more of ``metric`` is better."""
    return metric != "loss"


SCORED = "scored"
"""A column of rows in which another round than a run's last one counts: whether it is this."""


def best_rounds(rows: pd.DataFrame, metric: str) -> pd.Series:
    """Whether a row is of the first round in which the client's model, of that stage, does best on
    its own validation samples; of a client that has none, of the last round.
    """
    of = ["method", "run", "client", "stage"]
    own = rows[(rows["metric"] == in_validation(metric)) & (rows["split"] == "val")]
    own = own.assign(score=own["value"] * (-1 if rising(metric) else 1))
    first = own.sort_values(["score", "round"]).drop_duplicates(of)
    best = rows[of].merge(first[[*of, "round"]], on=of, how="left")["round"].to_numpy()
    last = rows.groupby(["method", "run"])["round"].transform("max")
    return rows["round"] == pd.Series(best, index=rows.index).fillna(last)


def in_validation(metric: str) -> str:
    """The metric by which validation data chooses for another one."""
    return "accuracy" if metric == REWEIGHTED else metric


def final(rows: pd.DataFrame, metric: str, split: str = "test") -> pd.DataFrame:
    """The rows of each run's last recorded round, or of that in `SCORED`, one per client.

    The stage is ``personal`` where the run has it, else ``global``.
    """
    part = rows[(rows["metric"] == metric) & (rows["split"] == split)]
    run = [part["method"], part["run"]]
    personal = part["stage"] == PERSONAL
    part = part[personal == personal.groupby(run).transform("max")]
    if SCORED in part:
        return part[part[SCORED]]
    last = part.groupby(["method", "run"])["round"].transform("max")
    return part[part["round"] == last]


def points(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """One row per hyper-parameter point: validation and test means and sds over its seeds.

    ``val`` and ``test`` are means over complete seeds of the uniform mean over clients.
    """
    table = runs
    for split in ("val", "test"):
        shown = in_validation(metric) if split == "val" else metric
        scores = final(rows, shown, split).groupby(["method", "run"])["value"].mean()
        table = table.merge(scores.rename(split).reset_index(), on=["method", "run"], how="left")
    complete = table["state"] == COMPLETE
    table = table.assign(
        val=table["val"].where(complete),
        test=table["test"].where(complete),
        n_seeds=complete,
        n_diverged=table["state"] == DIVERGED,
        n_missing=table["state"] == MISSING,
    )
    grouped = table.groupby([*SETTING, "method", "point"], sort=False)
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
    last, there = final(rows, metric, split), _points_there(runs)
    records = []
    for key, group in runs[runs["selected"]].groupby([*SETTING, "method"], sort=False):
        used = group.loc[group["state"] == COMPLETE, "run"]
        part = last[(last["method"] == key[-1]) & last["run"].isin(used)]
        seeds = part.groupby("run")["value"].mean()
        clients = part.groupby("client")["value"].mean()
        weighted = _weighted(part)
        ordered = clients.sort_values(ascending=rising(metric))
        worse = (clients.min(), 0.1) if rising(metric) else (clients.max(), 0.9)
        records.append(
            dict(zip([*SETTING, "method"], key, strict=True))
            | {
                "stage": part["stage"].iloc[0] if len(part) else GLOBAL,
                "round": part["round"].max() if len(part) else -1,
                "mean": seeds.mean(),
                "sd_seeds": seeds.std(),
                "sd_clients": clients.std(),
                "worst": worse[0],
                "p10": clients.quantile(worse[1]),
                "worst_tenth": ordered.iloc[: max(1, math.ceil(len(ordered) / 10))].mean(),
                "weighted": weighted.mean(),
                "weighted_sd_seeds": weighted.std(),
                "n_clients": len(clients),
                "n_seeds": len(seeds),
                "n_diverged": int((group["state"] == DIVERGED).sum()),
                "n_missing": int((group["state"] == MISSING).sum()),
                "n_points": len(there[key]),
                "n_points_there": sum(there[key]),
            }
        )
    return pd.DataFrame(records, columns=SUMMARY_COLUMNS)


def _points_there(runs: pd.DataFrame) -> dict[Any, list[bool]]:
    """By setting and method, for each point of its grid, whether none of its runs is missing."""
    found: dict[Any, list[bool]] = {}
    for (*key, _), states in runs.groupby([*SETTING, "method", "point"], sort=False)["state"]:
        found.setdefault(tuple(key), []).append(bool((states != MISSING).all()))
    return found


def gaps(row: Mapping[Any, Any]) -> str:
    """What must be said of a row of `summarise` or `points`: ``2 missing, 1 of 3 grid points
    there``.

    A grid with missing runs is named: its best point so far may not be its best.
    """
    told = [f"{row[f'n_{state}']} {state}" for state in (DIVERGED, MISSING) if row[f"n_{state}"]]
    points, there = row.get("n_points", 1), row.get("n_points_there", 1)
    return ", ".join([*told, *([f"{there} of {points} grid points there"] * (1 < points > there))])


def _weighted(part: pd.DataFrame) -> pd.Series:
    """By run, the mean of ``value`` weighted by ``n``."""
    weights = part["n"].where(part["value"].notna(), 0)
    sums = (part["value"] * weights).groupby(part["run"]).sum()
    return sums / weights.groupby(part["run"]).sum()


SUMMARY_COLUMNS = [
    *SETTING,
    *("method", "stage", "round", "mean", "sd_seeds", "sd_clients", "worst", "p10"),
    *("worst_tenth", "weighted", "weighted_sd_seeds"),
    *("n_clients", "n_seeds", "n_diverged", "n_missing", "n_points", "n_points_there"),
]
PAIRED_COLUMNS = [
    *SETTING,
    *("method", "baseline", "difference", "difference_sd_seeds", "n_seeds"),
    *("better", "equal", "worse", "n_clients", "p_sign"),
]


def paired(
    rows: pd.DataFrame, runs: pd.DataFrame, metric: str, baseline: str | None
) -> pd.DataFrame:
    """Each method against ``baseline`` on the same setting and seeds.

    ``difference`` and its sd: over common seeds, of the difference of the uniform means over
    clients. ``better``, ``equal``, ``worse``: shares of clients, each client counted once by its
    mean difference over the common seeds. ``p_sign``: two-sided exact sign test over clients.
    """
    last = final(rows, metric)
    picked = runs.loc[runs["selected"] & (runs["state"] == COMPLETE), ["method", "run"]]
    last = last.merge(picked, on=["method", "run"])
    records = []
    for setting, group in last.groupby(SETTING, sort=False):
        base = group[group["method"] == baseline].set_index(["seed", "client"])["value"]
        for method in runs["method"].unique():
            own = group[group["method"] == method].set_index(["seed", "client"])["value"]
            gain = (own - base).dropna()
            if method != baseline and len(gain):
                named = dict(zip([*SETTING, "method"], (*setting, method), strict=True))
                records.append(named | {"baseline": baseline} | _comparison(gain, metric))
    return pd.DataFrame(records, columns=PAIRED_COLUMNS)


def _comparison(gain: pd.Series, metric: str) -> dict[str, float]:
    """Statistics of the differences ``gain``, indexed by seed and client."""
    seeds = gain.groupby("seed").mean()
    clients = gain.groupby("client").mean() * (1 if rising(metric) else -1)
    # Means of equal accuracies may differ in their last bit; a real difference never is so small.
    better, worse = int((clients > 1e-12).sum()), int((clients < -1e-12).sum())
    return {
        "difference": seeds.mean(),
        "difference_sd_seeds": seeds.std(),
        "n_seeds": len(seeds),
        "better": better / len(clients),
        "equal": (len(clients) - better - worse) / len(clients),
        "worse": worse / len(clients),
        "n_clients": len(clients),
        "p_sign": sign_test(better, worse),
    }


def sign_test(better: int, worse: int) -> float:
    """Two-sided p-value of the exact sign test (Conover 1999, section 3.4); ties are left out.

    ``min(1, 2 sum_{i <= k} C(n, i) / 2^n)`` with ``n = better + worse``, ``k`` the smaller one.
    """
    n, k = better + worse, min(better, worse)
    chance: float = 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n
    return min(1.0, chance)
