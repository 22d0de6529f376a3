"""A study's results as tables: the long table, the runs table, and summaries of both.

The long table holds every recorded value of every finished run, in the columns of
`fl.schema.RESULT_COLUMNS` and `POINT_COLUMNS`, with a column for each hyper-parameter that varies
(`fl.results.varied`). It is the same, byte for byte, whenever the same runs give the same numbers;
timings and machines are only in the runs table.

Spread is reported twice and never mixed: over *seeds* (how repeatable a mean is) and over
*clients* (how unevenly a method serves them).
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fl import files
from fl.errors import DataError, Where
from fl.results import computed, varied
from fl.schema import GLOBAL, METRIC_COLUMNS, PERSONAL, RESULT_COLUMNS, REWEIGHTED
from fl.store import run_check
from fl.store.layout import METRICS, RECORD
from fl.store.store import Store

COMPLETE, DIVERGED, MISSING = "complete", "diverged", "missing"
SETTING = ["dataset", "partition", "model"]
"""The columns that say under what circumstances methods are compared."""

POINT_COLUMNS = {"point": "string", "selected": "bool"}
"""Of both tables: a row's grid point (``mu=0.1, lr=0.01``; empty without a grid), and whether it is
the one that validation data chose, which is what the main table shows.
"""

RUN_COLUMNS = {
    "study": "string",
    "run": "string",
    "dataset": "string",
    "partition": "string",
    "partition_id": "string",
    "model": "string",
    "method": "string",
    "title": "string",
    "point": "string",
    "seed": "int64",
    "state": "string",
    "rounds": "Int64",
    "rounds_before": "Int64",
    "seconds": "float64",
    "stack": "string",
    "backend": "string",
    "device": "string",
    "selected": "bool",
    "participants": "Int64",
    "traffic": "string",
    "bytes_down": "float64",
    "bytes_up": "float64",
    "flops": "float64",
    "state_client": "Int64",
    "state_server": "Int64",
}
"""Columns of ``<study>.runs.parquet``: one row per planned run, missing ones included. Those of
`fl.results.varied` follow.

rounds_before: rounds behind the model that it starts from, 0 where that is a fresh one; unknown
where the run that made it is gone. stack: the runs that were trained at once with it, itself
included; each of them has an equal share of the seconds. participants and those after it are what
`fl.train.costs.Costs` says, traffic as JSON; unknown of runs that do not tell.
"""

METADATA = b"fedloom"


def collect(plan: Mapping[str, Any], store: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The long table and the runs table of a study, from the runs that ``store`` holds.

    A run without a folder is ``missing`` in the runs table and absent from the long one.
    Raises `DataError` for a store entry that cannot be read and for a grid without validation
    results to choose by.
    """
    entries = {(entry["method"], entry["run"]): entry for entry in plan["runs"]}
    records = [_record(Store(store), entry["run"]) for entry in entries.values()]
    runs = pd.DataFrame(
        [
            _run_row(plan["study"], entry, record) | computed.columns(record, Store(store))
            for entry, record in zip(entries.values(), records, strict=True)
        ],
        columns=list(RUN_COLUMNS),
    ).astype(RUN_COLUMNS)
    hyper = varied.columns([entry.get("point") or {} for entry in entries.values()])
    runs = pd.concat([runs, hyper], axis=1)
    by_run = {run: record for (_, run), record in zip(entries, records, strict=True)}
    rows, owner = _long(runs, Store(store), by_run)
    runs["selected"] = _selected(rows, runs, plan["metric"])
    about = runs[[*POINT_COLUMNS, *hyper]].iloc[owner].reset_index(drop=True)
    return pd.concat([rows, about], axis=1), runs


def _record(store: Store, run: str) -> dict[str, Any] | None:
    """What ``run.json`` says, or nothing for a run that is not finished."""
    if not store.has(run):
        return None
    record = store.record(run)
    run_check.check_record(record, Where(str(store.place(run) / RECORD)))
    return record


def _run_row(
    study: str, entry: Mapping[str, Any], record: Mapping[str, Any] | None
) -> dict[str, Any]:
    known = {column: entry[column] for column in RUN_COLUMNS if column in entry}
    return known | {
        "study": study,
        "title": entry.get("title") or entry["method"],
        "point": point_text(entry.get("point") or {}),
        "state": record["state"] if record else MISSING,
        "selected": False,
    }


def point_text(point: Mapping[str, Any]) -> str:
    """A grid point as text, ``mu=0.1, lr=0.01``; empty without a grid."""
    return ", ".join(f"{key}={value}" for key, value in point.items())


def _long(
    runs: pd.DataFrame, store: Store, records: Mapping[str, Any]
) -> tuple[pd.DataFrame, np.ndarray]:
    """The recorded values, and for each of them its run's place in ``runs``."""
    order = runs.sort_values([*SETTING, "method", "seed", "run"], kind="stable")
    order = order[order["state"] != MISSING]
    places, order = order.index.to_numpy(), order.reset_index(drop=True)
    parts = [_metrics(store, run, records[run]) for run in order["run"]]
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    columns = {c: order[c].take(owner).to_numpy() for c in RESULT_COLUMNS if c in order}
    if parts:
        values = pd.concat(parts, ignore_index=True)
        columns |= {c: values[c].to_numpy() for c in METRIC_COLUMNS}
    rows = pd.DataFrame(columns, columns=list(RESULT_COLUMNS)).astype(RESULT_COLUMNS)
    return rows, places[owner]


def _metrics(store: Store, run: str, record: Mapping[str, Any]) -> pd.DataFrame:
    frame = store.metrics(run)
    try:
        run_check.check_metrics(frame, record, str(store.place(run) / METRICS))
    except DataError as error:
        remedy = "`python -m fl store verify --remove`, and train it again"
        raise DataError(f"{error}; {remedy}") from error
    frame = frame[list(METRIC_COLUMNS)]
    return frame.sort_values(["round", "client", "split", "stage", "metric"], kind="stable")


def write(plan: Mapping[str, Any], store: Path, folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Write ``<study>.parquet`` and ``<study>.runs.parquet`` into ``folder``; return both tables as
    a reader of the files finds them.

    Both carry the plan's hash and whether every planned run is there (see `read_plan_hash`).
    """
    rows, runs = collect(plan, store)
    stamp = {"plan": plan["hash"], "complete": bool((runs["state"] != MISSING).all())}
    study = plan["study"]
    with files.disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # The long table comes last: where it stands, the runs table of the same plan does too.
        runs = _write_parquet(runs, folder / f"{study}.runs.parquet", stamp)
        rows = _write_parquet(rows, folder / f"{study}.parquet", stamp)
    return rows, runs


def _write_parquet(frame: pd.DataFrame, path: Path, stamp: Mapping[str, Any]) -> pd.DataFrame:
    table = pa.Table.from_pandas(frame, preserve_index=False)
    metadata = {**(table.schema.metadata or {}), METADATA: json.dumps(stamp).encode()}
    content = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), content)
    files.write_bytes(path, content.getvalue())
    # Not read from the disk, where another Snakemake may be about to make the same table.
    return pd.read_parquet(content)


def read_plan_hash(path: Path) -> tuple[str, bool] | None:
    """The plan's hash in a table and whether no run was missing; nothing if it cannot be told."""
    try:
        stamp = json.loads((pq.read_schema(path).metadata or {})[METADATA])
        return str(stamp["plan"]), bool(stamp["complete"])
    except (OSError, KeyError, ValueError, pa.ArrowException):
        return None


def rising(metric: str) -> bool:
    """Whether more of ``metric`` is better."""
    return metric != "loss"


def final(rows: pd.DataFrame, metric: str, split: str = "test") -> pd.DataFrame:
    """The rows of each run's last recorded round, one per client.

    The stage is ``personal`` where the run has it, else ``global``.
    """
    part = rows[(rows["metric"] == metric) & (rows["split"] == split)]
    run = [part["method"], part["run"]]
    personal = part["stage"] == PERSONAL
    part = part[personal == personal.groupby(run).transform("max")]
    last = part.groupby(["method", "run"])["round"].transform("max")
    return part[part["round"] == last]


def points(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """One row per hyper-parameter point: validation and test means and sds over its seeds.

    ``val`` and ``test`` are means over complete seeds of the uniform mean over clients.
    """
    table = runs
    for split in ("val", "test"):
        shown = "accuracy" if (metric, split) == (REWEIGHTED, "val") else metric
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


def _selected(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> pd.Series:
    """Whether a run belongs to the point that does best on validation data (ties: the first)."""
    table = points(rows, runs, metric)
    best = set()
    for key, group in table.groupby([*SETTING, "method"], sort=False):
        if len(group) > 1 and group["n_seeds"].sum() and group["val"].isna().all():
            raise DataError(
                f"method {key[-1]!r} has a grid of {len(group)} points but no validation rows of "
                f"{metric!r} to choose by; give the partition a validation share or the method "
                "one point"
            )
        rank = pd.DataFrame(
            {
                "diverged": group["n_diverged"] > 0,
                "score": group["val"] * (-1 if rising(metric) else 1),
            }
        )
        first = rank.sort_values(["diverged", "score"], kind="stable", na_position="last").index[0]
        best.add((*key, group.loc[first, "point"]))
    keys = runs[[*SETTING, "method", "point"]].itertuples(index=False, name=None)
    return pd.Series([key in best for key in keys], index=runs.index, dtype=bool)


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
