"""Checkpoints, from which interrupted runs continue.

A checkpoint is a folder ``round-000010`` with ``state.safetensors``, ``rows.parquet`` and
``checkpoint.json``, which has a checksum and the sizes and hashes of the other two. It appears by
one rename when it is complete, so a kill at any moment leaves the earlier checkpoints.
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
MAX_CHECKPOINTS = 2
"""Number of a run's newest checkpoints that are not removed."""


@dataclass(frozen=True)
class Checkpoint:
    """State of a run after a round.

    Attributes:
        round: Number of the round.
        state: Trees of server and clients.
        extra: Other values, which JSON can represent.
        rows: Metrics so far.
    """

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
    """Write a checkpoint, and then remove all but the newest `MAX_CHECKPOINTS`.

    Args:
        folder: Folder of the run's checkpoints.
        round: Number of the round.
        state: Trees of server and clients.
        extra: Other values, which JSON can represent.
        rows: Metrics so far.

    Raises:
        FedloomError: If the disk is full or cannot be written; the earlier checkpoints then stay.
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
            files.erase(final)  # A checkpoint of the same round.
            draft.rename(final)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        files.sync_folder(folder)
        for surplus in _newest_first(folder)[MAX_CHECKPOINTS:]:
            files.erase(surplus)


def load_latest(folder: Path, device: str | torch.device = "cpu") -> Checkpoint | None:
    """Return the newest complete checkpoint in ``folder``, or None if there is none.

    Damaged newer checkpoints are removed with a warning, and unfinished ones of killed processes.
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
    """Return the checkpoint in a folder; `DataError` or `FileNotFoundError` if it is incomplete."""
    record = files.read_sealed(path / RECORD)
    for name in (STATE, ROWS):
        if problem := files.find_damage(path / name, record["files"][name]):
            raise DataError(problem)
    rows, _ = parquet.read(path / ROWS)
    return Checkpoint(record["round"], load_tree(path / STATE, device), record["extra"], rows)


def _newest_first(folder: Path) -> list[Path]:
    """Return the folders of checkpoints by descending round."""
    if not folder.exists():
        return []
    paths = [path for path in folder.iterdir() if re.fullmatch(r"round-\d+", path.name)]
    return sorted(paths, key=lambda path: int(path.name.removeprefix("round-")), reverse=True)
