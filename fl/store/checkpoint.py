"""State on disk: trees of tensors as safetensors files, and checkpoints, from which runs continue.

Nothing is pickled.

A checkpoint is a folder ``round-000010`` with ``state.safetensors``, ``rows.parquet`` and
``checkpoint.json``, which has a checksum and the sizes and hashes of the other two. It appears by
one rename when it is complete, so a kill at any moment leaves the earlier checkpoints. Clients of a
run that do not fit into memory are in ``<run>.rows``, a further name of the file in which the
process has them (`fl.base.row_file`).
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import safetensors
import safetensors.torch
import torch

from fl.base import files
from fl.base.errors import DataError
from fl.base.row_file import RowFile, check_rows
from fl.store.run_record import SAVED_RECORD, SAVED_ROWS, SAVED_STATE

Tree = dict[str, Any]
"""A nested dict with text keys (without ``/``) whose leaves are tensors."""

MAX_DEPTH = 50
"""Largest depth of a tree that is read."""

log = logging.getLogger(__name__)

MAX_CHECKPOINTS = 2
"""Number of a run's newest checkpoints that are not removed."""


def save_tree(tree: Tree, path: Path) -> None:
    """Write a tree as a safetensors file, atomically.

    Values, types, memory layouts (strides), the order of keys and empty dicts are stored: a resumed
    run sums in the same order over the same layouts, so it gets the same bits. Tensors that share
    memory are loaded as separate tensors, and no leaf requires a gradient.

    Raises:
        FedloomError: If the disk is full or cannot be written.
    """
    content = pack_tree(tree)
    with files.disk_errors(path):
        files.write_bytes(path, content)


def pack_tree(tree: Tree) -> bytes:
    """Return the content of a file of `save_tree`."""
    tensors: dict[str, torch.Tensor] = {}
    layout: list[tuple[str, list[int] | None]] = []
    storages: set[int] = set()
    for name, leaf in _flatten(tree, ()):
        if leaf is None:
            layout.append((name, None))
            continue
        # Strides of a clone: those of the tensor if it is dense, else contiguous ones.
        layout.append((name, list(torch.empty_like(leaf, device="meta").stride())))
        tensor = leaf.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    return safetensors.torch.save(tensors, {"tree": json.dumps(layout)})


def _flatten(tree: Tree, above: tuple[str, ...]) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Return flat name and tensor of each leaf, and None for each empty dict but the root."""
    if not tree and above:
        yield "/".join(above), None
    for key, value in tree.items():
        if not isinstance(key, str) or not key or "/" in key:
            raise ValueError(f"{'/'.join(above)}: the key {key!r} is not text without '/'")
        if isinstance(value, dict):
            yield from _flatten(value, (*above, key))
        elif isinstance(value, torch.Tensor):
            yield "/".join((*above, key)), value
        else:
            raise TypeError(f"{'/'.join((*above, key))}: {type(value).__name__} is not a tensor")


def load_tree(path: Path, device: str | torch.device = "cpu") -> Tree:
    """Read a file of `save_tree` into new memory on ``device``.

    Raises:
        DataError: If the file is missing, damaged or no file of `save_tree`.
    """
    tree: Tree = {}
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            for name, stride in _layout(file).items():
                *above, last = name.split("/")
                inner = tree
                for key in above:
                    inner = inner.setdefault(key, {})
                if last in inner or len(above) > MAX_DEPTH:
                    raise ValueError(f"{name[:80]!r} is part of another name")
                if stride is None:
                    inner[last] = {}
                    continue
                # A copy, because the mapped file may be removed while the run continues.
                stored = file.get_tensor(name)
                _check_stride(name, list(stored.shape), stride)
                inner[last] = torch.empty_strided(
                    stored.shape, stride, dtype=stored.dtype, device=device
                ).copy_(stored)
    except (
        *(safetensors.SafetensorError, OSError, TypeError, KeyError, ValueError),
        *(AttributeError, RuntimeError, MemoryError),
    ) as error:
        reason = str(error).split("\n")[0][:200]
        raise DataError(f"{path}: cannot be read as a saved tree ({reason})") from error
    return tree


def _layout(file: Any) -> dict[str, Any]:
    """Return the strides of each leaf by flat name; None for each empty dict.

    Raises:
        ValueError: If the file has no layout, or not that of its tensors.
    """
    pairs = files.parse_json(file.metadata()["tree"])
    layout = {str(name): stride for name, stride in pairs}
    if len(layout) != len(pairs):
        raise ValueError("a name is duplicate")
    if {name for name, stride in layout.items() if stride is not None} != {*file.keys()}:
        raise ValueError("its tree has other names than its tensors")
    return layout


def _check_stride(name: str, shape: list[int], stride: list[int]) -> None:
    """Refuse strides that do not fill the memory exactly once, in some order of axes.

    Otherwise two numbers would share memory, or memory between them would be read.

    Raises:
        ValueError: For such strides.
    """
    if len(stride) != len(shape) or not all(type(step) is int for step in stride):
        raise ValueError(f"{name[:80]!r} has strides {stride} for the shape {shape}")
    expected = 1
    for step, size in sorted((s, n) for s, n in zip(stride, shape, strict=True) if n != 1):
        if step != expected and 0 not in shape:
            raise ValueError(f"{name[:80]!r} has strides {stride} for the shape {shape}")
        expected *= size
    if not all(0 <= step < 2**62 for step in stride):
        raise ValueError(f"{name[:80]!r} has strides {stride} for the shape {shape}")


@dataclass(frozen=True)
class Checkpoint:
    """State of a run after a round.

    Attributes:
        round: Number of the round.
        state: Trees of server and clients.
        extra: Other values, which JSON can represent.
        rows: Metrics so far.
        folder: Folder of this checkpoint.
        row_files: By run, its file of clients, if it has one.
    """

    round: int
    state: Tree
    extra: dict[str, Any]
    rows: pd.DataFrame
    folder: Path
    row_files: Mapping[str, Path]


def save_checkpoint(
    folder: Path,
    round: int,
    state: Tree,
    extra: Mapping[str, Any],
    rows: pd.DataFrame,
    row_files: Mapping[str, RowFile] | None = None,
) -> None:
    """Write a checkpoint, and then remove all but the newest `MAX_CHECKPOINTS`.

    Args:
        folder: Folder of the run's checkpoints.
        round: Number of the round.
        state: Trees of server and clients.
        extra: Other values, which JSON can represent.
        rows: Metrics so far.
        row_files: By run, the file of its clients; ``state[run]["clients"]`` has their ``places``
            in it and ``digests``.

    Raises:
        FedloomError: If the disk is full or cannot be written; the earlier checkpoints then stay.
    """
    final = folder / f"round-{round:06d}"
    draft = files.temporary_name(final)
    with files.disk_errors(final):
        try:
            draft.mkdir(parents=True)
            files.write_bytes(draft / SAVED_STATE, pack_tree(state))
            files.write_table(draft / SAVED_ROWS, rows)
            record: dict[str, Any] = {"round": round, "extra": dict(extra)}
            for run, row_file in (row_files or {}).items():
                row_file.link(draft / _row_file_name(run))
                record.setdefault("row_bytes", {})[run] = row_file.row_bytes
            files.write_sealed(draft / SAVED_RECORD, record, files=(SAVED_STATE, SAVED_ROWS))
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
    record = files.read_sealed(path / SAVED_RECORD)
    for name in (SAVED_STATE, SAVED_ROWS):
        if problem := files.find_damage(path / name, record["files"][name]):
            raise DataError(problem)
    rows, _ = files.read_parquet(path / SAVED_ROWS)
    state, row_files = load_tree(path / SAVED_STATE, device), dict[str, Path]()
    for run, row_bytes in record.get("row_bytes", {}).items():
        row_files[run], clients = path / _row_file_name(run), state[run]["clients"]
        digests = clients["digests"].numpy(force=True)
        check_rows(row_files[run], row_bytes, clients["places"].tolist(), digests)
    return Checkpoint(record["round"], state, record["extra"], rows, path, row_files)


def _row_file_name(run: str) -> str:
    return f"{run}.rows"


def _newest_first(folder: Path) -> list[Path]:
    """Return the folders of checkpoints by descending round."""
    if not folder.exists():
        return []
    paths = [path for path in folder.iterdir() if re.fullmatch(r"round-\d+", path.name)]
    return sorted(paths, key=lambda path: int(path.name.removeprefix("round-")), reverse=True)
