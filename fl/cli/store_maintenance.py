"""Maintenance of a store: list runs, find damage, find unfinished files."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl.base.errors import FedloomError, Location
from fl.base.files import disk_errors
from fl.base.specs import ComponentSpec
from fl.base.units import config_text
from fl.store import run_check
from fl.store.run_record import METRICS, PREDICTIONS, RECORD, RUN_FILES, TRACES, WEIGHTS, RunRecord
from fl.store.store import Store

UNFINISHED, DAMAGED = "unfinished", "damaged"
DAY = 86400.0


@dataclass(frozen=True)
class StoredRun:
    """Run in a store.

    Attributes:
        run: Its id.
        state: State in its record, `UNFINISHED`, or `DAMAGED` if the record is no valid record.
        record: Its record; empty without a valid one.
        size: Bytes on the disk, with checkpoints.
    """

    run: str
    state: str
    record: Mapping[str, Any]
    size: int


def entries(store: Store) -> Iterator[StoredRun]:
    """Return all runs of a store, finished runs first."""
    for run in store.runs():
        try:
            record = store.record(run)
            run_check.check_whole(record, Location(run))
        except FedloomError:
            yield StoredRun(run, DAMAGED, {}, _size(store.folder(run)))
        else:
            yield StoredRun(run, record["state"], record, _size(store.folder(run)))
    for run in store.unfinished():
        yield StoredRun(run, UNFINISHED, {}, _size(store.folder(run)))


def problems(store: Store, run: str) -> list[str]:
    """Return a line for each problem of a finished run: files, name, content."""
    if damages := store.verify(run):
        return damages
    folder = store.folder(run)
    try:
        record = store.record(run)
        run_check.check_whole(record, Location(str(folder / RECORD)))
        run_check.check_id(record, run, str(folder))
        # Records can come from other people: no name may lead out of the run's folder.
        if unknown := sorted({*record["files"]} - {*RUN_FILES}):
            return [f"{folder}: has an unknown file {name!r}" for name in unknown]
        if METRICS not in record["files"]:
            return [f"{folder}: has no {METRICS}"]
        checked = RunRecord.from_json(record)
        run_check.joined_metrics([store.metrics(run)], [checked], [str(folder / METRICS)])
        if WEIGHTS in record["files"]:
            store.weights(run)
        if PREDICTIONS in record["files"]:
            run_check.check_predictions(store.predictions(run), str(folder / PREDICTIONS))
        run_check.check_traces(store.traces(run), checked.rounds, str(folder / TRACES))
    except FedloomError as error:
        return [str(error)]
    return []


def leftovers(data: Path) -> list[Path]:
    """Return unfinished folders of prepared data that have not changed for a day."""
    with disk_errors(data):
        partial = sorted((data / "prepared").glob(".*.partial"))
        return [path for path in partial if time.time() - _last_change(path) > DAY]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in _files(folder))


def _last_change(folder: Path) -> float:
    """Return the time of the last change in a folder, in seconds; now if it is being removed."""
    with contextlib.suppress(FileNotFoundError):
        return max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
    return time.time()


def _files(folder: Path) -> Iterator[Path]:
    """Return the files below a folder, without files that other processes remove meanwhile."""
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                yield path


def text(choice: ComponentSpec, hidden: Collection[str] = ()) -> str:
    """Return a component of a spec as one line: ``fedprox(mu=0.5)``."""
    keys = {k: v for k, v in choice.items() if k != "name" and k not in hidden}
    arguments = ", ".join(f"{key}={config_text(value)}" for key, value in keys.items())
    return f"{choice['name']}({arguments})" if arguments else str(choice["name"])
