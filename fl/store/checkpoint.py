"""Checkpoints that a resumed run starts from.

A checkpoint is a folder ``round-000010`` with ``state.safetensors``, ``rows.parquet`` and
``checkpoint.json``, which is sealed and holds the sizes and hashes of the other two. Beside it
there may be what was kept of the round after that, ``midway``, with files of the same names but no
rows; it goes with one checkpoint, whose record's hash it holds. Each appears by one rename when all
of it is on the disk, so a kill at any moment leaves the ones before.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import torch

from fl.base import files, parquet
from fl.base.errors import DataError
from fl.store.tree_file import Tree, load_tree, packed, unpacked

log = logging.getLogger(__name__)

STATE, ROWS, RECORD = "state.safetensors", "rows.parquet", "checkpoint.json"
MIDWAY = "midway"


@dataclass(frozen=True)
class Midway:
    """What was kept of a round before it was over."""

    state: Tree
    extra: dict[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after ``round``, and what was kept of the round after it."""

    round: int
    state: Tree
    extra: dict[str, Any]
    rows: pd.DataFrame
    midway: Midway | None = None


def save(
    folder: Path,
    round: int,
    state: Tree,
    extra: Mapping[str, Any],
    rows: pd.DataFrame,
    keep: int = 2,
) -> None:
    """Add the checkpoint of ``round`` to ``folder`` and then remove all but the newest ``keep``.

    Args:
        extra: Anything that JSON can hold.

    Raises:
        FedloomError: If the disk is full or refuses; the earlier checkpoints then stay.
    """
    if keep < 1:
        raise ValueError(f"keep is {keep}: at least the checkpoint just saved has to stay")
    final = _place(folder, round)
    with files.disk_errors(final):

        def write(draft: Path) -> None:
            files.write_bytes(draft / STATE, packed(state))
            files.write_table(draft / ROWS, rows)
            files.write_sealed(
                draft / RECORD, {"round": round, "extra": dict(extra)}, files=(STATE, ROWS)
            )

        _put(final, write)
        for surplus in _newest_first(folder)[keep:]:
            files.erase(surplus)
        for path in _midways(folder):
            files.erase(path)


def has(folder: Path, round: int) -> bool:
    """Whether there is a checkpoint of that round."""
    return (_place(folder, round) / RECORD).exists()


def save_midway(folder: Path, round: int, state: Tree, extra: Mapping[str, Any]) -> None:
    """Keep ``state`` of the round that follows ``round``, whose checkpoint is in ``folder``.

    It is in place of what was kept of that round before, and the next checkpoint removes it. What
    tensors repeat (a stride of 0) is stored once, and loaded so.

    Args:
        extra: Anything that JSON can hold.

    Raises:
        FedloomError: If the disk is full or refuses; what was kept before then stays.
    """
    with files.disk_errors(folder / MIDWAY):
        record = {"of": _seal(_place(folder, round)), "extra": dict(extra)}

        def write(draft: Path) -> None:
            files.write_bytes(draft / STATE, packed(state, repeats=True))
            files.write_sealed(draft / RECORD, record, files=(STATE,))

        _put(folder / MIDWAY, write)


def _put(final: Path, write: Callable[[Path], None]) -> None:
    """Make a folder, whose files ``write`` writes, appear or replace the one before."""
    draft = files.temporary(final)
    try:
        draft.mkdir(parents=True)
        write(draft)
        before = final.with_name(f"{final.name}.old")
        if final.exists():
            files.erase(before)
            final.rename(before)
        draft.rename(final)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    files.sync_folder(final.parent)
    files.erase(before)


def load_latest(folder: Path, device: str | torch.device = "cpu") -> Checkpoint | None:
    """The newest complete checkpoint in ``folder``, or None if there is none.

    Newer ones that are damaged are renamed to ``<name>.corrupt-N`` with a warning, and unfinished
    ones of killed processes are removed. Only the process that holds the run's lease may call this.
    """
    for leftover in folder.glob(".*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)
    for path in _newest_first(folder):
        found = _whole(path, lambda path: _read(path, device))
        if found is not None:
            return replace(found, midway=_load_midway(folder, _seal(path)))
    return None


def _load_midway(folder: Path, seal: str) -> Midway | None:
    """What was kept of the round after the checkpoint of that seal."""
    for path in _midways(folder):
        found = _whole(path, _read_midway)
        if found is not None and found[0] == seal:
            return found[1]
    return None


Read = TypeVar("Read")


def _whole(path: Path, read: Callable[[Path], Read]) -> Read | None:
    """What ``read`` gives; None if the folder is damaged and was set aside."""
    with files.disk_errors(path):
        try:
            return read(path)
        except (DataError, FileNotFoundError) as error:
            aside = _free_name(path)
            path.rename(aside)
            log.warning("checkpoint %s is damaged and set aside as %s: %s", path, aside, error)
    return None


def _read(path: Path, device: str | torch.device) -> Checkpoint:
    """The checkpoint in a folder; `DataError` or `FileNotFoundError` if it is not complete."""
    record = _record(path, STATE, ROWS)
    round, extra = record.get("round"), record.get("extra")
    if type(round) is not int or round < 0 or not isinstance(extra, dict):
        raise DataError(f"{path / RECORD}: does not say after which round it was")
    rows, _ = parquet.read(path / ROWS)
    return Checkpoint(round, load_tree(path / STATE, device), extra, rows)


def _read_midway(path: Path) -> tuple[str, Midway]:
    """What a folder holds of a round, and the seal of its checkpoint; errors as of `_read`."""
    record = _record(path, STATE)
    of, extra = record.get("of"), record.get("extra")
    if not isinstance(of, str) or not isinstance(extra, dict):
        raise DataError(f"{path / RECORD}: does not say of which checkpoint it is")
    return of, Midway(unpacked(path / STATE, "cpu", repeats=True), extra)


def _record(path: Path, *names: str) -> dict[str, Any]:
    """The record of a folder whose files are as it says."""
    record = files.read_sealed(path / RECORD)
    for name in names:
        if problem := files.damage(path / name, record["files"].get(name, {"size": 0})):
            raise DataError(problem)
    return record


def _seal(path: Path) -> str:
    """The hash of a checkpoint's record, and so of all of it."""
    return hashlib.sha256((path / RECORD).read_bytes()).hexdigest()


def _place(folder: Path, round: int) -> Path:
    return folder / f"round-{round:06d}"


def _midways(folder: Path) -> list[Path]:
    """What was kept of a round, and what was being replaced by it."""
    found = (folder / MIDWAY, folder / f"{MIDWAY}.old")
    return [path for path in found if path.exists()]


def _newest_first(folder: Path) -> list[Path]:
    """Checkpoints by descending round; ``.old`` was being replaced by one of the same round."""
    matches = [
        (re.fullmatch(r"round-(\d+)(\.old)?", path.name), path)
        for path in (folder.iterdir() if folder.exists() else ())
    ]
    found = [(int(match[1]), match[2] is None, path) for match, path in matches if match]
    return [path for *_, path in sorted(found, reverse=True)]


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    return aside
