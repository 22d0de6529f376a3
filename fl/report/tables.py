"""A study's results as two tables, read from the store and written as Parquet.

The long table holds every recorded value of every finished run, in the columns of
`fl.base.schema.RESULT_COLUMNS`, `REPORTED` and `POINT_COLUMNS`, with a column ``hp.<key>`` for each
hyper-parameter that varies, `SCORED` where the best round of each client counts, and `ATTACKS`
where clients attack. In the last round it also has the metrics of the final models' predictions
that a study asks for. It is the same, byte for byte, whenever the same runs give the same numbers.
Timings and machines are only in the runs table, `RUN_COLUMNS`.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fl.analyses.confusion import BINS, measures
from fl.base.errors import DataError, Location
from fl.base.schema import (
    BY_CLASS,
    CLOCK,
    COMPLETE,
    METRIC_COLUMNS,
    MISSING,
    PERSONAL,
    RESULT_COLUMNS,
    SETTING,
    rising,
)
from fl.base.units import config_text, values_text
from fl.plan.bundle import Run
from fl.plan.config import Values
from fl.plan.study_plan import StudyPlan
from fl.report.privacy import PRIVACY, UNCOUNTED, epsilon_columns, installed
from fl.report.summaries import ATTACKS, KEY, REPORTED, SCORED, best_rounds, grid_points
from fl.store import run_check
from fl.store.run_record import METRICS, PREDICTIONS, RECORD, RunRecord, UnknownCosts
from fl.store.store import Store

POINT_COLUMNS = {"point": "string", "selected": "bool"}
"""Columns of both tables: the grid point of a row (``mu=0.1, lr=0.01``; empty without a grid), and
whether validation data chose this point, which the main table then shows.
"""

RUN_COLUMNS = {
    "study": "string",
    "run": "string",
    "dataset": "string",
    "partition": "string",
    "partition_id": "string",
    "model": "string",
    "setting": "string",
    "draw": "string",
    "method": "string",
    "title": "string",
    "point": "string",
    "seed": "int64",
    "state": "string",
    "rounds": "Int64",
    "rounds_before": "Int64",
    "seconds": "float64",
    "seconds_before": "float64",
    "simulated_before": "float64",
    "stack": "string",
    "backend": "string",
    "arithmetic": "string",
    "device": "string",
    "fedloom": "string",
    "python": "string",
    "torch": "string",
    "numpy": "string",
    "cuda": "string",
    "mkl": "string",
    "onednn": "string",
    "processor": "string",
    "instructions": "string",
    "numbers": "string",
    "trained_as": "string",
    "selected": "bool",
    "clients": "Int64",
    "participants": "Int64",
    "traffic": "string",
    "bytes_down": "float64",
    "bytes_up": "float64",
    "bytes_before": "float64",
    "flops": "float64",
    "flops_server": "float64",
    "memory_client": "Int64",
    "state_client": "Int64",
    "state_server": "Int64",
    **PRIVACY,
}
"""Columns of ``<study>.runs.parquet``: one row per planned run, missing ones included. Columns
``hp.<key>`` follow.

rounds_before, seconds_before, bytes_before: costs of the model that a run starts from; 0 if it
starts from fresh variables, unknown if a run of the chain is missing or its record lacks them.
simulated_before: likewise its simulated seconds; unknown if a run of the chain has no devices.
stack: the runs that were trained at once with it, itself included; each of them has an equal share
of the seconds. trained_as: the name that a run had when it was trained, if it was adopted
(`fl.plan.adoption`). participants, traffic (JSON) and the other costs are those of the run's
record; unknown if the record lacks them. epsilon, delta, epsilon_lacks: see `fl.report.privacy`.
"""

Stamp = dict[str, str | bool]
"""Hash of a table's plan, and whether the table is complete."""

RunRow = dict[str, str | int | float | bool | None]
"""Values of `RUN_COLUMNS` for one run."""

HYPER = "hp."
"""Prefix of the columns of hyper-parameters, as one can have the name of another column."""

METADATA = b"fedloom"

MEASURE_BY_METRIC = {"macro_f1": "f1", "auroc": "area", "calibration_error": "calibration"}
"""Names of metrics in `fl.analyses.confusion`, which defines them."""


def collect(plan: StudyPlan, store: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the long table and the runs table of a study, from the runs in a store.

    A run that the store lacks is ``missing`` in the runs table, and has no rows in the long table.

    Raises:
        DataError: If a run cannot be read, or if a grid has no validation results to choose by.
    """
    entries = {(entry.method, entry.run): entry for entry in plan.runs}
    records = [_record(Store(store), entry.run) for entry in entries.values()]
    runs = pd.DataFrame(
        [
            _run_row(plan.study, entry, record, Store(store))
            for entry, record in zip(entries.values(), records, strict=True)
        ],
        columns=list(RUN_COLUMNS),
    ).astype(RUN_COLUMNS)
    hyper = _hyper_columns([entry.point for entry in entries.values()])
    runs = pd.concat([runs, hyper], axis=1)
    by_run = {record.run: record for record in records if record is not None}
    rows, owner = _long(runs, Store(store), by_run, plan.metrics)
    rows[REPORTED] = _reported(rows, owner)
    runs["traffic"] = _measured_traffic(rows, runs)
    if plan.scored == "best":
        rows[SCORED] = best_rounds(rows, plan.metric)
    if (attacks := _attacks(rows, by_run)).any():
        rows[ATTACKS] = attacks
    candidates = runs
    if plan.choice == "longest":
        rounds = pd.Series([e.spec["training"]["rounds"] for e in entries.values()], runs.index)
        longest = rounds.groupby([runs[key] for key in KEY]).transform("max")
        candidates = runs[rounds == longest]
    runs["selected"] = _selected(rows, runs, candidates, plan.metric)
    about = runs[[*POINT_COLUMNS, *hyper]].iloc[owner].reset_index(drop=True)
    return pd.concat([rows, about], axis=1), runs


def _measured_traffic(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.Series:
    """Return the traffic of each run; with devices it is what the clock has counted.

    Bytes to clients whose work is lost, and of questions, are in it. As the traffic of other runs,
    it is that of a participant, in JSON: ``[rounds, down, up]`` of stretches of equal rounds.
    """
    traffic = runs["traffic"].copy()
    clock = rows[(rows["split"] == CLOCK) & rows["metric"].isin(["bytes_down", "bytes_up"])]
    for run, own in clock.groupby("run"):
        sent = own.drop_duplicates(["round", "metric"]).pivot(
            index="round", columns="metric", values="value"
        )
        places = runs.index[(runs["run"] == run) & runs["participants"].notna()]
        for place in places:
            by_participant = sent.sort_index() / float(runs.loc[place, "participants"])
            pairs = by_participant[["bytes_down", "bytes_up"]].to_numpy().tolist()
            traffic[place] = json.dumps([[1, *pair] for pair in pairs])
    return traffic


def _reported(rows: pd.DataFrame, owner: np.ndarray) -> pd.Series:
    """Return whether each row is of the stage that the report shows for its run and round.

    This is ``personal`` from the first round in which the run has it, and ``global`` before.
    """
    personal = rows["stage"].eq(PERSONAL).astype(bool)
    rounds = rows["round"].where(personal).astype("float64")
    first = rounds.groupby([owner, rows["split"], rows["metric"]]).transform("min")
    # Without a personal stage `first` is NaN, and no round is at least NaN.
    return personal | ~(rows["round"] >= first)


def _attacks(rows: pd.DataFrame, records: Mapping[str, RunRecord]) -> pd.Series:
    """Return whether the client of each row attacks; NA if its run's record lacks that."""
    attacks = pd.Series(False, rows.index, dtype="boolean")
    for run, places in rows.groupby("run").groups.items():
        record = records[str(run)]
        if not record.spec.get("wire"):
            continue
        if record.attackers is None:
            attacks = attacks.mask(rows["run"] == run)
        else:
            attacks[places] = rows.loc[places, "client"].isin(record.attackers)
    return attacks


def _record(store: Store, run: str) -> RunRecord | None:
    """Return the record of a run; None if it is not finished."""
    if not store.has(run):
        return None
    record, place = store.record(run), str(store.folder(run) / RECORD)
    run_check.check_record(record, Location(place))
    run_check.check_id(record, run, place)
    return RunRecord.from_json(record)


def _run_row(study: str, entry: Run, record: RunRecord | None, store: Store) -> RunRow:
    row: RunRow = {key: getattr(entry, key) for key in RUN_COLUMNS if hasattr(entry, key)}
    row |= {
        "study": study,
        "point": values_text(entry.point),
        "state": record.state if record else MISSING,
        "selected": False,
    }
    return row if record is None else row | _computed(record) | _earlier_costs(record, store)


def _computed(record: RunRecord) -> RunRow:
    """Return how a run was computed, and its costs as far as its record has them."""
    row: RunRow = {
        "rounds": record.rounds,
        "seconds": record.seconds,
        "stack": ", ".join(record.execution.stack or [record.run]),
        "backend": record.execution.backend,
        "arithmetic": record.execution.arithmetic or None,
        "device": record.execution.device,
        "processor": record.environment.get("processor"),
        "instructions": record.environment.get("instructions"),
        "numbers": _numbers(record.code),
        "trained_as": record.trained_as or None,
    }
    row |= {name: text for name, text in record.versions.items() if name in RUN_COLUMNS}
    row |= epsilon_columns(record)
    traffic = record.traffic
    if traffic is None or isinstance(record.costs, UnknownCosts):
        return row
    costs = {
        key: value
        for key, value in asdict(record.costs).items()
        if key in RUN_COLUMNS and value is not None
    }
    if traffic and traffic != record.costs.traffic:
        # The record has the means over all planned rounds.
        rounds, down, up = np.array(traffic).T
        costs |= {"bytes_down": np.average(down, weights=rounds)}
        costs |= {"bytes_up": np.average(up, weights=rounds)}
    return row | costs | {"traffic": json.dumps(traffic)}


def _numbers(code: Mapping[str, str]) -> str:
    """Return the versions of a run's numbers, ``core 1, data 1, method 2``.

    Code that is not certified has its hash instead of a version.
    """
    return ", ".join(f"{k} {v}" for k, v in code.items() if k not in ("dataset", "partition"))


def _earlier_costs(record: RunRecord, store: Store) -> RunRow:
    """Return the costs of all earlier runs in the chain that a run starts from."""
    rounds, seconds, simulated, total = 0, 0.0, 0.0, 0.0
    passed, start = [record.run], record.start
    while start is not None:
        if start in passed:
            raise DataError(f"{store.folder(start)}: starts from itself, according to the records")
        passed.append(start)
        earlier = _record(store, start)
        if earlier is None:
            return {}
        rounds += earlier.rounds
        seconds += earlier.seconds
        seconds_of_clock, sent = _clock_totals(earlier, store)
        total += sent
        simulated += seconds_of_clock if record.spec.get("devices") else math.nan
        start = earlier.start
    costs: RunRow = {"rounds_before": rounds, "seconds_before": seconds, "bytes_before": total}
    return costs | {"simulated_before": simulated}


def _clock_totals(record: RunRecord, store: Store) -> tuple[float, float]:
    """Return a run's simulated seconds, NaN without devices, and its bytes (`_total_bytes`).

    With devices the bytes are what the clock has counted, as in `_measured_traffic`.
    """
    if not record.spec.get("devices"):
        return math.nan, _total_bytes(record)
    rows = store.metrics(record.run)
    clock = rows[rows["split"] == CLOCK].groupby("metric")["value"]
    sent = clock.sum().reindex(["bytes_down", "bytes_up"]).sum(skipna=False)
    return float(clock.max().get("seconds", math.nan)), float(sent)


def _total_bytes(record: RunRecord) -> float:
    """Return the bytes between server and clients in a run's completed rounds; NaN if unknown."""
    if isinstance(record.costs, UnknownCosts) or record.costs.participants is None:
        return float("nan")
    return record.costs.participants * sum(n * (down + up) for n, down, up in record.traffic or ())


def _hyper_columns(points: Sequence[Values]) -> pd.DataFrame:
    """Return a row for each grid point, with a column ``hp.<key>`` for each key of any point.

    Columns are sorted by name. Whole numbers are ``Int64``, other numbers ``float64``, true and
    false ``boolean``, all else is text. A point without the key has an empty cell.
    """
    keys = sorted({key for point in points for key in point})
    return pd.DataFrame(
        {HYPER + key: _typed([point.get(key) for point in points]) for key in keys},
        index=range(len(points)),
    )


def _typed(values: Sequence[Any]) -> pd.Series:
    kinds = {type(value) for value in values if value is not None}
    for dtype, allowed in (("boolean", {bool}), ("Int64", {int}), ("float64", {int, float})):
        if kinds <= allowed:
            return pd.Series(values, dtype=dtype)
    return pd.Series([None if v is None else config_text(v) for v in values], dtype="string")


def _long(
    runs: pd.DataFrame,
    store: Store,
    records: Mapping[str, RunRecord],
    metric_names: list[str],
) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the recorded values with the metrics of predictions that the study asks for.

    Returns:
        The values, and for each of them the index of its run in ``runs``.
    """
    order = runs.sort_values([*SETTING, "method", "seed", "run"], kind="stable")
    order = order[order["state"] != MISSING]
    places, order = order.index.to_numpy(), order.reset_index(drop=True)
    values, owner = _metrics(store, list(order["run"]), records, metric_names)
    columns = {c: order[c].take(owner).to_numpy() for c in RESULT_COLUMNS if c in order}
    columns |= {c: values[c].to_numpy() for c in METRIC_COLUMNS}
    rows = pd.DataFrame(columns, columns=list(RESULT_COLUMNS)).astype(RESULT_COLUMNS)
    return rows, places[owner]


def _metrics(
    store: Store,
    runs: Sequence[str],
    records: Mapping[str, RunRecord],
    metric_names: list[str],
) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the rows of runs, one run after another, and the index of each row's run."""
    if not runs:
        return pd.DataFrame(columns=list(METRIC_COLUMNS)), np.zeros(0, int)
    recorded = [store.metrics(run) for run in runs]
    if metric_names:
        recorded = [
            _with_predicted(table, store, records[run], metric_names)
            for table, run in zip(recorded, runs, strict=True)
        ]
    sources = [str(store.folder(run) / METRICS) for run in runs]
    try:
        rows = run_check.joined_metrics(recorded, [records[run] for run in runs], sources)
    except DataError as error:
        advice = "remove it with `fedloom store verify --remove`, and train it again"
        raise DataError(str(error), advice=advice) from error
    rows["owner"] = np.repeat(np.arange(len(runs)), [len(table) for table in recorded])
    rows = rows.sort_values(["owner", *run_check.KEY], kind="stable", ignore_index=True)
    return rows, rows["owner"].to_numpy()


def _with_predicted(
    table: pd.DataFrame, store: Store, record: RunRecord, metric_names: list[str]
) -> pd.DataFrame:
    """Return a complete run's rows with the metrics of its predictions, of scored clients."""
    if record.state != COMPLETE:
        return table
    predicted_metrics = _predicted_rows(store, record.run, record.rounds, metric_names)
    if predicted_metrics.empty:
        return table
    # Predictions are of all clients, also where `evaluate_clients` scores a sample of them.
    scored = table[["client", "split", "stage"]].drop_duplicates()
    predicted_metrics = predicted_metrics.astype(table.dtypes).merge(scored)
    return pd.concat([table, predicted_metrics], ignore_index=True)


def encode(plan: StudyPlan, store: Path) -> tuple[bytes, bytes]:
    """Return the contents of ``<study>.parquet`` and ``<study>.runs.parquet``.

    Both hold the plan's hash and whether every planned run is finished, see `read_plan_hash`.
    """
    rows, runs = collect(plan, store)
    stamp: Stamp = {
        "plan": plan.hash,
        "complete": bool((runs["state"] != MISSING).all()),
        "uncounted": bool(runs["epsilon_lacks"].eq(UNCOUNTED).any()),
    }
    return parquet(rows, stamp), parquet(runs, stamp)


def parquet(frame: pd.DataFrame, stamp: Mapping[str, Any], compression: str = "snappy") -> bytes:
    """Return a Parquet file with a stamp in its metadata, under `METADATA`."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    metadata = {**(table.schema.metadata or {}), METADATA: json.dumps(stamp).encode()}
    content = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), content, compression=compression)
    return content.getvalue()


def read_plan_hash(path: Path) -> tuple[str, bool] | None:
    """Return the plan's hash in a table and whether the table is complete.

    It is complete if it lacks no run, and no epsilon that could be computed now. None for a file
    without a hash.
    """
    try:
        stamp = json.loads((pq.read_schema(path).metadata or {})[METADATA])
        is_complete = stamp["complete"] and not (stamp.get("uncounted") and installed())
        return str(stamp["plan"]), bool(is_complete)
    except (OSError, KeyError, ValueError, pa.ArrowException):
        return None


def _selected(
    rows: pd.DataFrame, runs: pd.DataFrame, candidates: pd.DataFrame, metric: str
) -> pd.Series:
    """Return whether each run is of the point that is best on validation data (ties: the first).

    Only points of ``candidates`` can be.
    """
    table = grid_points(rows, candidates, metric)
    grids = table.groupby(KEY, sort=False).agg(
        points=("point", "size"), finished=("n_seeds", "sum"), scored=("val", "count")
    )
    unscored = grids[(grids["points"] > 1) & (grids["finished"] > 0) & (grids["scored"] == 0)]
    for grid in unscored.reset_index().to_dict("records"):
        raise DataError(
            f"method {grid['method']!r} has a grid of {grid['points']} points but no validation "
            f"rows of {metric!r} to choose by",
            advice="give the partition a share `val`, or the method one point",
        )
    table["diverged"] = table["n_diverged"] > 0
    table["score"] = table["val"] * (-1 if rising(metric) else 1)
    table = table.sort_values(["diverged", "score"], kind="stable", na_position="last")
    best = table.drop_duplicates(KEY).set_index([*KEY, "point"]).index
    return pd.Series(pd.MultiIndex.from_frame(runs[[*KEY, "point"]]).isin(best), runs.index)


def _predicted_rows(store: Store, run: str, last: int, metrics: list[str]) -> pd.DataFrame:
    """Return metrics of a run's predictions in `METRIC_COLUMNS`; none if they are not stored.

    The accuracy on each class is that on the samples of the class that a client has.
    """
    if not metrics or not store.has(run, (PREDICTIONS,)):
        return pd.DataFrame(columns=list(METRIC_COLUMNS))
    rows_ = []
    for (stage, split, client), table in store.predictions(run).groupby(
        ["stage", "split", "client"], sort=False
    ):
        values = measures(table, BINS) if set(MEASURE_BY_METRIC) & {*metrics} else {}
        values = {
            name: values[MEASURE_BY_METRIC[name]] for name in metrics if name in MEASURE_BY_METRIC
        }
        counts = dict.fromkeys(values, len(table))
        if "per_class_accuracy" in metrics:
            correct = (table["label"] == table["predicted"]).groupby(table["label"])
            values |= {f"{BY_CLASS}{k}": share for k, share in correct.mean().items()}
            counts |= {f"{BY_CLASS}{k}": count for k, count in correct.size().items()}
        rows_ += [
            (last, client, split, stage, name, value, counts[name])
            for name, value in values.items()
            if value == value  # An area under the curve that is not defined is left out.
        ]
    return pd.DataFrame(rows_, columns=list(METRIC_COLUMNS))
