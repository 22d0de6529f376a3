"""Maintaining a store: what it holds, what is damaged, what nobody needs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl.base.errors import FedloomError, Location
from fl.base.files import disk_errors
from fl.base.units import config_text
from fl.store import run_check
from fl.store.layout import KEPT, METRICS, PREDICTIONS, RECORD, TRACES, WEIGHTS
from fl.store.store import Store

UNFINISHED, DAMAGED = "unfinished", "damaged"
DAY = 86400.0


@dataclass(frozen=True)
class StoredRun:
    """A run in a store.

    Attributes:
        state: As in its record; `UNFINISHED`; or `DAMAGED` if the record cannot be read or is
            not that of a run.
        record: Empty where there is none.
        size: Bytes on the disk, checkpoints included.
    """

    run: str
    state: str
    record: Mapping[str, Any]
    size: int


def entries(store: Store) -> Iterator[StoredRun]:
    """Every run of a store, the finished ones first."""
    for run in store.runs():
        try:
            record = store.record(run)
            run_check.check_whole(record, Location(run))
        except FedloomError:
            yield StoredRun(run, DAMAGED, {}, _size(store.place(run)))
        else:
            yield StoredRun(run, record["state"], record, _size(store.place(run)))
    for run in store.unfinished():
        yield StoredRun(run, UNFINISHED, {}, _size(store.place(run)))


def problems(store: Store, run: str) -> list[str]:
    """What is wrong with a finished run, one line each: its files, its name, its content."""
    if damages := store.verify(run):
        return damages
    place = store.place(run)
    try:
        record = store.record(run)
        run_check.check_whole(record, Location(str(place / RECORD)))
        run_check.check_id(record, run, str(place))
        # Whoever filled the store named them: no name may lead out of the run's folder.
        if strange := sorted({*record["files"]} - {*KEPT}):
            return [f"{place}: has a file {name!r}" for name in strange]
        if METRICS not in record["files"]:
            return [f"{place}: has no {METRICS}"]
        run_check.joined_metrics([store.metrics(run)], [record], [str(place / METRICS)])
        if WEIGHTS in record["files"]:
            store.weights(run)
        if PREDICTIONS in record["files"]:
            run_check.check_predictions(store.predictions(run), str(place / PREDICTIONS))
        run_check.check_traces(store.traces(run), record, str(place / TRACES))
    except FedloomError as error:
        return [str(error)]
    return []


def leftovers(data: Path) -> list[Path]:
    """Unfinished folders of prepared data that have not changed for a day."""
    with disk_errors(data):
        partial = sorted((data / "prepared").glob(".*.partial"))
        return [path for path in partial if time.time() - _touched(path) > DAY]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in _files(folder))


def _touched(folder: Path) -> float:
    """When a folder or something in it last changed, in seconds; now if it is being removed."""
    with contextlib.suppress(FileNotFoundError):
        return max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
    return time.time()


def _files(folder: Path) -> Iterator[Path]:
    """The files below a folder, except those that disappear meanwhile."""
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                yield path


def text(choice: Mapping[str, Any], hidden: Collection[str] = ()) -> str:
    """A choice of a spec in one line: ``fedprox(mu=0.5)``."""
    given = {k: v for k, v in choice.items() if k != "name" and k not in hidden}
    shown = ", ".join(f"{key}={config_text(value)}" for key, value in given.items())
    return f"{choice['name']}({shown})" if shown else str(choice["name"])
