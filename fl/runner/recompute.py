"""A stored run trained once more, from its own record, beside the store."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from fl.base.errors import DataError, FedloomError
from fl.plan import run_spec
from fl.plan.bundle import Bundle, Member
from fl.plan.config import Execution, Settings
from fl.plan.run_spec import RunSpec
from fl.runner.job import train_bundle
from fl.store import import_export, maintenance
from fl.store.import_export import NEW
from fl.store.layout import WEIGHTS
from fl.store.run_check import KEY
from fl.store.sameness import TOLERANCE
from fl.store.store import Store

if TYPE_CHECKING:
    import pandas as pd

BACKENDS = get_args(get_type_hints(Execution)["backend"])


@dataclass(frozen=True)
class Difference:
    """Where a metric differs most: the row's `KEY`, and its two values, NaN where it is not."""

    metric: str
    at: Mapping[str, Any]
    stored: float
    here: float

    @property
    def size(self) -> float:
        """Of two numbers their distance; 0 of two NaN; infinite where one of both is missing."""
        if math.isnan(self.stored) and math.isnan(self.here):
            return 0.0
        return math.inf if math.isnan(self.stored + self.here) else abs(self.stored - self.here)

    @property
    def same(self) -> bool:
        """Whether the store would take both for one number, see `fl.store.sameness`."""
        return not self.size or self.size <= TOLERANCE * (1 + abs(self.here))


@dataclass(frozen=True)
class Recomputed:
    """What came of it.

    Attributes:
        run: The stored run.
        records: ``run.json`` as it is stored, and of the run that was trained now.
        differences: Of every metric the largest one.
    """

    run: str
    records: tuple[Mapping[str, Any], Mapping[str, Any]]
    differences: list[Difference]

    @property
    def environments(self) -> dict[str, tuple[str, str]]:
        """By name what each of both was computed with, and what it cost."""
        stored, here = map(_environment, self.records)
        return {key: (stored.get(key, ""), here.get(key, "")) for key in {**stored, **here}}


def recompute(run: str, store: Store, settings: Settings, lock: Path, anyway: bool) -> Recomputed:
    """Train a finished run of a store again. Its data are dealt anew; the store is only read.

    It is trained with the runs of its stack, as far as the store has them: in another stack it is
    rounded otherwise, and rounding grows.

    Args:
        settings: Where data are, and how runs are computed. The backend and the number of threads
            are those of the stored run, in one process.
        lock: The checksums of data.
        anyway: Train by the code at hand where other code made the run.

    Raises:
        FedloomError: For a damaged run, a start whose weights are not there, a run that fails, and,
            unless ``anyway``, for code that is other than what made the run.
    """
    if problems := maintenance.problems(store, run):
        raise DataError("; ".join(problems))
    record = store.record(run)
    spec = run_spec.with_defaults(record["spec"])
    code = RunSpec(spec).code
    if not anyway:
        _check(run, record, code)
    with tempfile.TemporaryDirectory(prefix="fedloom-") as folder:
        scratch, start = Store(Path(folder) / "runs"), record.get("start")
        if start is not None and import_export.copy_run(start, store, scratch).outcome != NEW:
            raise FedloomError(
                f"{run}: begins with the model of {start}, which {store.root} has not, or damaged"
            )
        members = list(_members(run, store, scratch, code))
        failed = train_bundle(_bundle(members, record, settings, lock, folder), scratch)
        if failed and not scratch.has(run):
            raise FedloomError(f"failed: {'; '.join(failed)}")
        both = store.metrics(run), scratch.metrics(run)
        return Recomputed(run, (record, scratch.record(run)), list(_differences(*both)))


def _members(run: str, store: Store, scratch: Store, code: Mapping[str, str]) -> Iterator[Member]:
    """The runs of a run's stack that are there, each with the model that it starts from."""
    stack = store.record(run)["execution"].get("stack") or []
    for mate in stack if run in stack else [run]:
        if mate == run or (store.has(mate) and not maintenance.problems(store, mate)):
            record = store.record(mate)
            start, spec = record.get("start"), run_spec.with_defaults(record["spec"])
            lacks = start is not None and not scratch.has(start, (WEIGHTS,))
            if not lacks or import_export.copy_run(str(start), store, scratch).outcome == NEW:
                yield Member(mate, spec, dict(code), RunSpec(spec).default_keys, start, keep=[])


def _check(run: str, record: Mapping[str, Any], code: Mapping[str, str]) -> None:
    made: dict[str, str] = record["code"]
    other = [key for key in sorted({*made, *code}) if made.get(key) != code.get(key)]
    if other:
        told = (f"{key} {made.get(key, 'none')} (here {code.get(key, 'none')})" for key in other)
        of = record.get("versions", {}).get("fedloom", "another version")
        raise FedloomError(
            f"run {run}: was made by other code, {', '.join(told)}, of fedloom {of}; "
            "--anyway trains it by the code here"
        )


def _bundle(
    members: list[Member], record: Mapping[str, Any], settings: Settings, lock: Path, folder: str
) -> Bundle:
    told = record["execution"]
    backend: Any = told["backend"] if told["backend"] in BACKENDS else "auto"
    threads = told.get("threads", settings.execution.threads)
    execution = replace(settings.execution, backend=backend, threads=threads, processes=1)
    run, code = record["run"], members[0].code
    return Bundle(
        bundle=run,
        title=run,
        runs=members,
        dataset=code["dataset"],
        partition=code["partition"],
        after=[],
        unstackable="",
        results=folder,
        data=settings.data,
        sources=settings.sources,
        lock=str(lock),
        plugins=list(settings.plugins),
        execution=replace(execution, log=[]),
    )


def _differences(stored: pd.DataFrame, here: pd.DataFrame) -> Iterator[Difference]:
    keys = list(KEY)
    both = stored.merge(here, on=keys, how="outer", suffixes=("_stored", "_here"))
    for metric, rows in both.groupby("metric"):
        each = [
            Difference(
                str(metric),
                {key: row[key] for key in keys if key != "metric"},
                row["value_stored"],
                row["value_here"],
            )
            for row in rows.to_dict("records")
        ]
        yield max(each, key=lambda difference: difference.size)


def _environment(record: Mapping[str, Any]) -> dict[str, str]:
    execution, environment = record["execution"], record.get("environment", {})
    told = {
        **record.get("versions", {}),
        "processor": environment.get("processor"),
        "lock": environment.get("lock"),
        "device": execution.get("device"),
        "backend": execution["backend"],
        "threads": execution.get("threads"),
        "processes": execution.get("processes"),
        "runs in the stack": len(execution.get("stack") or [1]),
        "data set": record.get("data", {}).get("dataset"),
        "partition": record.get("data", {}).get("partition", "")[:16] or None,
        "date": record.get("date"),
        "state": record["state"],
        "rounds": record["rounds"],
        "seconds": record["seconds"],
    }
    return {key: str(value) for key, value in told.items() if value is not None}
