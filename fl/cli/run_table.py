"""The runs of a store as a table: their states, main settings and sizes."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fl.base import fields, registry
from fl.base.errors import FedloomError, Location
from fl.base.specs import ComponentSpec, Spec
from fl.base.units import config_text, printable, size
from fl.cli.commands import aligned
from fl.store import run_check
from fl.store.store import Store

UNFINISHED, DAMAGED = "unfinished", "damaged"


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


def stored_runs(store: Store) -> Iterator[StoredRun]:
    """Return all runs of a store, finished runs first."""
    for run in store.runs():
        try:
            record = store.record(run)
            run_check.check_whole(record, Location(run))
        except FedloomError:
            yield StoredRun(run, DAMAGED, {}, _folder_size(store.folder(run)))
        else:
            yield StoredRun(run, record["state"], record, _folder_size(store.folder(run)))
    for run in store.unfinished():
        yield StoredRun(run, UNFINISHED, {}, _folder_size(store.folder(run)))


def table(runs: Iterable[StoredRun]) -> Iterator[str]:
    """Return the lines of a table, cut to the width of a terminal."""
    columns = ("run", "state", "seed", "rounds", "lr", "size", "date", "version", "method")
    head = (*columns, "data set / partition / model")
    cells = [head, *(tuple(map(printable, _row(stored))) for stored in runs)]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for line in aligned(cells):
        yield line if len(line) <= width else f"{line[: width - 1]}…"


def _row(stored: StoredRun) -> tuple[str, ...]:
    spec = stored.record.get("spec")
    if spec is None:
        return (stored.run, stored.state, "", "", "", size(stored.size), "", "", "", "")
    split = ("seed", "val", "test")
    setting = [
        _text("data set", spec["dataset"]),
        _text("partition scheme", spec["partition"], split),
    ]
    return (
        stored.run,
        stored.state,
        str(spec["seed"]),
        str(spec["training"]["rounds"]),
        str(spec["training"].get("lr", "")),
        size(stored.size),
        str(stored.record.get("date", ""))[:10],
        stored.record.get("versions", {}).get("fedloom", ""),
        " + ".join([_text("method", spec["method"]), *_added_names(spec)]),
        " / ".join([*setting, _text("model", spec["model"])]),
    )


def _text(kind: str, choice: ComponentSpec, hidden: Collection[str] = ()) -> str:
    """Return a component of a spec as one line: ``fedprox(mu=0.5)``, without default values."""
    defaults = _defaults(kind, str(choice["name"]))
    texts = {key: config_text(value) for key, value in choice.items() if key != "name"}
    changed = [
        f"{key}={text}"
        for key, text in texts.items()
        if key not in hidden and defaults.get(key) != text
    ]
    return f"{choice['name']}({', '.join(changed)})" if changed else str(choice["name"])


@cache
def _defaults(kind: str, name: str) -> dict[str, str]:
    try:
        keys = fields.fields(registry.find_declaration(kind, name, Location(name)).target)
    except FedloomError:
        return {}
    return {key: config_text(field.default) for key, field in keys.items()}


def _added_names(spec: Spec) -> list[str]:
    """Return the names of components that a study adds to a method."""
    return [component["name"] for _, _, component in registry.added_components(spec)]


def _folder_size(folder: Path) -> int:
    """Return the bytes of the files below a folder; one with several names counts once."""
    files = [path.stat() for path in _files_below(folder)]
    return sum({file.st_ino: file.st_size for file in files}.values())


def _files_below(folder: Path) -> Iterator[Path]:
    """Return the files below a folder, without files that other processes remove meanwhile."""
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                yield path
