"""A stored run, trained again from its own record and compared; the store does not change."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from fl.base.errors import DataError, FedloomError
from fl.base.schema import PERSONAL
from fl.data.dataset import task_of
from fl.plan import run_spec
from fl.plan.bundle import Bundle, Run
from fl.plan.config import Execution, Settings
from fl.plan.run_spec import RunSpec
from fl.runner.job import train_bundle
from fl.runner.repetitions import Repetitions
from fl.runner.runs import describe_failures
from fl.store import import_export, run_check
from fl.store.import_export import NEW, TOLERANCE
from fl.store.run_check import KEY
from fl.store.run_record import WEIGHTS, RunRecord
from fl.store.store import Store

if TYPE_CHECKING:
    import pandas as pd


BACKENDS = get_args(get_type_hints(Execution)["backend"])


@dataclass(frozen=True)
class Difference:
    """The largest difference of a metric between two runs.

    Attributes:
        metric: Name of the metric.
        row: Round, client, split and stage of the values.
        stored: Value of the stored run; NaN if the row is missing.
        recomputed: Value of the recomputed run; NaN if the row is missing.
    """

    metric: str
    row: Mapping[str, int | str]
    stored: float
    recomputed: float

    @property
    def size(self) -> float:
        """Absolute difference; 0 if both are NaN, infinite if one of them is NaN."""
        if math.isnan(self.stored) and math.isnan(self.recomputed):
            return 0.0
        if math.isnan(self.stored + self.recomputed):
            return math.inf
        return abs(self.stored - self.recomputed)

    def is_within(self, tolerance: float) -> bool:
        """Whether both values are equal to rounding, see `fl.store.import_export`."""
        return not self.size or self.size <= tolerance * (1 + abs(self.recomputed))


@dataclass(frozen=True)
class FinalScores:
    """Test scores of both runs after the last round, of the models that a report shows.

    Attributes:
        metric: Name of the metric.
        stored: Mean over clients of the stored run.
        recomputed: Mean over clients of the recomputed run.
        largest: Largest difference of a client.
    """

    metric: str
    stored: float
    recomputed: float
    largest: float


@dataclass(frozen=True)
class Recomputation:
    """Result of a recomputation.

    Attributes:
        run: Id of the stored run.
        records: The record of the stored run, and that of the recomputed one.
        differences: The largest difference of each metric.
        scores: The scores that a report shows.
        rounding: By repetition, how far rounding alone moves the mean of these.
        metrics: Metrics of the recomputed run.
    """

    run: str
    records: tuple[RunRecord, RunRecord]
    differences: list[Difference]
    scores: FinalScores
    rounding: list[float]
    metrics: pd.DataFrame

    @property
    def is_exact(self) -> bool:
        """Whether the bits of both runs must be equal."""
        return import_export.must_be_equal(*self.records)

    @property
    def is_equal(self) -> bool:
        """Whether all metrics are equal: exactly, or to rounding where that may differ."""
        tolerance = 0.0 if self.is_exact else TOLERANCE
        return all(difference.is_within(tolerance) for difference in self.differences)

    @property
    def is_within_rounding(self) -> bool:
        """Whether the mean score moved no further than rounding alone moves it."""
        gap = abs(self.scores.stored - self.scores.recomputed)
        return not self.is_exact and gap <= max(self.rounding, default=math.nan)

    @property
    def environments(self) -> dict[str, tuple[str, str]]:
        """Properties of both computations by name: stored, recomputed."""
        stored, recomputed = map(_describe_computation, self.records)
        return {
            key: (stored.get(key, ""), recomputed.get(key, "")) for key in {**stored, **recomputed}
        }


def recompute(
    run: str,
    store: Store,
    settings: Settings,
    lock: Path,
    ignore_code: bool,
    repetitions: int = 0,
) -> Recomputation:
    """Train a finished run of a store again, from newly made data; the store is only read.

    The run is trained with the other stored runs of its stack, because another stack leads to other
    rounding, and rounding errors grow.

    Args:
        run: Id of the run.
        store: The store.
        settings: Folders of data and settings of execution. Backend and number of threads are those
            of the stored run, in one process.
        lock: The file with checksums of data.
        ignore_code: Whether to train the run even if its code differs from the code of today.
        repetitions: Number of repetitions that are trained to see how far rounding alone moves the
            run (`fl.runner.repetitions`). Those in the store count in any case.

    Returns:
        The comparison of both runs.

    Raises:
        FedloomError: If the run is damaged, if the weights with which it begins are missing, if it
            fails, or if its code differs and ``ignore_code`` is not set.
    """
    if problems := run_check.find_problems(store, run):
        raise DataError("; ".join(problems))
    record = RunRecord.from_json(store.record(run))
    spec = run_spec.with_defaults(record.spec)
    code = RunSpec(spec).code
    if not ignore_code:
        advice = "--anyway trains it with the code of today"
        _check_code(record, code, {*record.code, *code}, advice)
    with tempfile.TemporaryDirectory(prefix="fedloom-") as folder:
        scratch = Store(Path(folder) / "runs")
        if (
            record.start is not None
            and import_export.copy_run(record.start, store, scratch).outcome != NEW
        ):
            raise FedloomError(
                f"{run}: begins with the model of {record.start}, which is missing or damaged in "
                f"{store.root}"
            )
        members = list(_members(record, store, scratch))

        def train(members: list[Run], needed: str, stored: RunRecord) -> None:
            failed = train_bundle(_bundle(members, stored, settings, lock, folder), scratch)
            if failed and not scratch.has(needed):
                raise FedloomError(f"failed: {'; '.join(describe_failures(failed))}")

        train(members, run, record)
        recomputed = RunRecord.from_json(scratch.record(run))
        tables = store.metrics(run), scratch.metrics(run)
        metric = task_of(RunSpec(spec).dataset, spec["dataset"]["name"]).metrics[0]
        scores = _final_scores(metric, *tables)
        repeated = Repetitions(
            store, scratch, lambda member, stored: train([member], member.run, stored)
        )
        metrics = [store.metrics(repetition) for repetition in repeated.stored(run)]
        numbers = range(len(metrics) + 1, repetitions + 1)
        metrics += [scratch.metrics(repeated.trained(run, number)) for number in numbers]
        # Not from the stored run, which may be wrong.
        rounding = [abs(_mean_score(table, metric) - scores.recomputed) for table in metrics]
        differences = [*_differences(*tables)]
        return Recomputation(run, (record, recomputed), differences, scores, rounding, tables[1])


def _members(record: RunRecord, store: Store, scratch: Store) -> Iterator[Run]:
    """Yield the stored runs of a run's stack, each with the model with which it begins."""
    run, stack = record.run, record.execution.stack or []
    for sibling in stack if run in stack else [run]:
        if sibling == run or (store.has(sibling) and not run_check.find_problems(store, sibling)):
            sibling_record = RunRecord.from_json(store.record(sibling))
            start = sibling_record.start
            spec = run_spec.with_defaults(sibling_record.spec)
            needs_start = start is not None and not scratch.has(start, (WEIGHTS,))
            if not needs_start or import_export.copy_run(str(start), store, scratch).outcome == NEW:
                yield Run(sibling, spec, RunSpec(spec).code, RunSpec(spec).default_keys, start)


def stored_bundle(run: str, store: Store, settings: Settings, lock: Path) -> Bundle:
    """Return the bundle of one stored run by its record, to open its models.

    Args:
        run: Id of the run.
        store: The store.
        settings: Folders of data and results.
        lock: The file with checksums of data.

    Raises:
        FedloomError: If its model or its method has changed since.
    """
    record = RunRecord.from_json(store.record(run))
    spec = run_spec.with_defaults(record.spec)
    code = RunSpec(spec).code
    advice = "the version of Fedloom that trained it, with which `model.save` keeps it"
    _check_code(record, code, ("model", "method"), advice)
    member = Run(run, spec, code, RunSpec(spec).default_keys, record.start)
    return _bundle([member], record, settings, lock, settings.results)


def _check_code(
    record: RunRecord, code: Mapping[str, str], keys: Collection[str], advice: str
) -> None:
    """Refuse a run whose code differs from the code of today in one of the keys."""
    stored = record.code
    changed = [key for key in sorted(keys) if stored.get(key) != code.get(key)]
    if changed:
        pairs = (
            f"{key} {stored.get(key, 'none')} (now {code.get(key, 'none')})" for key in changed
        )
        version = record.versions.get("fedloom", "an unknown version")
        raise FedloomError(
            f"run {record.run}: was computed by other code: {', '.join(pairs)}, of fedloom "
            f"{version}",
            advice=advice,
        )


def _bundle(
    members: list[Run], record: RunRecord, settings: Settings, lock: Path, folder: str
) -> Bundle:
    stored = record.execution
    backend: Any = stored.backend if stored.backend in BACKENDS else "auto"
    threads = settings.execution.threads if stored.threads is None else stored.threads
    execution = replace(settings.execution, backend=backend, threads=threads, processes=1)
    return Bundle(
        bundle=record.run,
        title=record.run,
        runs=members,
        dataset=members[0].dataset_id,
        partition=members[0].partition_id,
        after=[],
        results=folder,
        data=settings.data,
        sources=settings.sources,
        lock=str(lock),
        plugins=list(settings.plugins),
        execution=replace(execution, log=[]),
    )


def _differences(stored: pd.DataFrame, recomputed: pd.DataFrame) -> Iterator[Difference]:
    """Yield the largest difference of each metric."""
    keys = list(KEY)
    merged = stored.merge(recomputed, on=keys, how="outer", suffixes=("_stored", "_recomputed"))
    for metric, rows in merged.groupby("metric"):
        differences = [
            Difference(
                str(metric),
                {key: row[key] for key in keys if key != "metric"},
                row["value_stored"],
                row["value_recomputed"],
            )
            for row in rows.to_dict("records")
        ]
        yield max(differences, key=lambda difference: difference.size)


def _final_scores(metric: str, *tables: pd.DataFrame) -> FinalScores:
    """Return the scores of both tables of metrics."""
    stored, recomputed = (_final_values(table, metric) for table in tables)
    largest = (stored - recomputed).abs().max()
    return FinalScores(metric, stored.mean(), recomputed.mean(), largest)


def _mean_score(table: pd.DataFrame, metric: str) -> float:
    """Return the mean over clients of `_final_values`."""
    return float(_final_values(table, metric).mean())


def _final_values(table: pd.DataFrame, metric: str) -> pd.Series:
    """Return the test score of each client after the last round, of its own model if it has one."""
    rows = table[(table["metric"] == metric) & (table["split"] == "test")]
    rows = rows[rows["round"] == rows["round"].max()]
    personal = rows[rows["stage"] == PERSONAL]
    values: pd.Series = (personal if len(personal) else rows).set_index("client")["value"]
    return values


def _describe_computation(record: RunRecord) -> dict[str, str]:
    """Return properties of a computation by name, without unknown ones."""
    execution, environment = record.execution, record.environment
    values = {
        **record.versions,
        "processor": environment.get("processor"),
        "lock": environment.get("lock"),
        "device": execution.device,
        "arithmetic": execution.arithmetic or None,
        "instructions": environment.get("instructions"),
        "backend": execution.backend,
        "threads": execution.threads,
        "processes": execution.processes,
        "runs in the stack": len(execution.stack or [1]),
        "data set": record.data.get("dataset"),
        "partition": record.data.get("partition", "")[:16] or None,
        "date": record.date or None,
        "state": record.state,
        "rounds": record.rounds,
        "seconds": record.seconds,
    }
    return {key: str(value) for key, value in values.items() if value is not None}
