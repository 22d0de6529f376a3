"""Checkpoints that a resumed run starts from.

A checkpoint is a folder ``round-000010`` with ``state.safetensors``, ``rows.parquet`` and
``checkpoint.json``, which is sealed and holds the sizes and hashes of the other two. It appears by
one rename when all of it is on the disk, so a kill at any moment leaves the ones before.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from fl.base import files, parquet
from fl.base.errors import DataError
from fl.store.tree_file import Tree, load_tree, packed

log = logging.getLogger(__name__)

STATE, ROWS, RECORD = "state.safetensors", "rows.parquet", "checkpoint.json"
KEPT = 2
"""Checkpoints of a run that stay."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after ``round``."""

    round: int
    state: Tree
    extra: dict[str, Any]
    rows: pd.DataFrame


def save(
    folder: Path,
    round: int,
    state: Tree,
    extra: Mapping[str, Any],
    rows: pd.DataFrame,
) -> None:
    """Add the checkpoint of ``round`` to ``folder`` and then remove all but the newest `KEPT`.

    Args:
        extra: Anything that JSON can hold.

    Raises:
        FedloomError: If the disk is full or refuses; the earlier checkpoints then stay.
    """
    final = folder / f"round-{round:06d}"
    draft = files.temporary_name(final)
    with files.disk_errors(final):
        try:
            draft.mkdir(parents=True)
            files.write_bytes(draft / STATE, packed(state))
            files.write_table(draft / ROWS, rows)
            record = {"round": round, "extra": dict(extra)}
            files.write_sealed(draft / RECORD, record, files=(STATE, ROWS))
            files.erase(final)  # One of the same round; a kill now leaves the one before.
            draft.rename(final)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        files.sync_folder(folder)
        for surplus in _newest_first(folder)[KEPT:]:
            files.erase(surplus)


def load_latest(folder: Path, device: str | torch.device = "cpu") -> Checkpoint | None:
    """The newest complete checkpoint in ``folder``, or None if there is none.

    Newer ones that are damaged are removed with a warning, and unfinished ones of killed processes.
    Only the process that holds the run's lease may call this.
    """
    for leftover in folder.glob(".*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)
    for path in _newest_first(folder):
        with files.disk_errors(path):
            try:
                return _read(path, device)
            except (DataError, FileNotFoundError) as error:
                files.erase(path)
                log.warning("checkpoint %s was damaged and is removed: %s", path, error)
    return None


def _read(path: Path, device: str | torch.device) -> Checkpoint:
    """The checkpoint in a folder; `DataError` or `FileNotFoundError` if it is not complete."""
    record = files.read_sealed(path / RECORD)
    for name in (STATE, ROWS):
        if problem := files.find_damage(path / name, record["files"][name]):
            raise DataError(problem)
    rows, _ = parquet.read(path / ROWS)
    return Checkpoint(record["round"], load_tree(path / STATE, device), record["extra"], rows)


def _newest_first(folder: Path) -> list[Path]:
    """Checkpoints by descending round."""
    if not folder.exists():
        return []
    paths = [path for path in folder.iterdir() if re.fullmatch(r"round-\d+", path.name)]
    return sorted(paths, key=lambda path: int(path.name.removeprefix("round-")), reverse=True)
