"""Trees of tensors on disk, and checkpoints that a resumed run starts from.

A checkpoint is a folder ``round-000010`` with ``state.safetensors``, ``rows.parquet`` and
``checkpoint.json``, which is sealed and holds the sizes and hashes of the other two. It appears by
one rename when all of it is on the disk, so a kill at any moment leaves the ones before.
Nothing is pickled.
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

from fl import files, parquet
from fl.errors import DataError

log = logging.getLogger(__name__)

Tree = dict[str, Any]
"""A nested dict with text keys (without ``/``) whose leaves are tensors."""

DEEPEST = 50
"""Dicts within each other at most, in a tree that is read."""
STATE, ROWS, RECORD = "state.safetensors", "rows.parquet", "checkpoint.json"


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after ``round``."""

    round: int
    state: Tree
    extra: dict[str, Any]
    rows: pd.DataFrame


def save_tree(tree: Tree, path: Path) -> None:
    """Write a tree as a safetensors file, atomically.

    Values, types, memory layouts (strides), the order of keys and empty dicts are all kept: a
    resumed run sums in the same order over the same layouts, so it gets the same bits. Tensors that
    share memory are loaded apart, and no leaf requires a gradient.

    Raises:
        FedloomError: If the disk is full or refuses.
    """
    content = _packed(tree)
    with files.disk_errors(path):
        files.write_bytes(path, content)


def _packed(tree: Tree) -> bytes:
    tensors: dict[str, torch.Tensor] = {}
    layout: list[tuple[str, list[int] | None]] = []
    owned: set[int] = set()
    for name, leaf in _flatten(tree, ()):
        if leaf is None:
            layout.append((name, None))
            continue
        # The strides of a clone: those of the tensor if it fills its memory, plain ones if not.
        layout.append((name, list(torch.empty_like(leaf, device="meta").stride())))
        tensor = leaf.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if storage in owned else tensor
        owned.add(storage)
    return safetensors.torch.save(tensors, {"tree": json.dumps(layout)})


def _flatten(tree: Tree, above: tuple[str, ...]) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Flat name and tensor of each leaf, and None for each empty dict but the root."""
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
    """Read what `save_tree` wrote, into memory of its own on ``device``.

    Raises:
        DataError: If the file is missing, damaged or not such a file.
    """
    tree: Tree = {}
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            layout = _layout(file)
            for name, stride in layout.items():
                *above, last = name.split("/")
                inner = tree
                for key in above:
                    inner = inner.setdefault(key, {})
                if last in inner or len(above) > DEEPEST:
                    raise ValueError(f"{name[:80]!r} stands in or above another name")
                if stride is None:
                    inner[last] = {}
                    continue
                # Copied out of the mapped file, which may be removed while the run goes on.
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


def _layout(file: Any) -> dict[str, list[int] | None]:
    """Flat name and strides of each leaf, None for each empty dict.

    Raises:
        ValueError: If the file states no layout, or not that of its tensors.
    """
    found = files.parse_json(file.metadata()["tree"])
    layout = {str(name): stride for name, stride in found}
    if len(layout) != len(found):
        raise ValueError("a name stands twice")
    if {name for name, stride in layout.items() if stride is not None} != {*file.keys()}:
        raise ValueError("its tree has other names than its tensors")
    return layout


def _check_stride(name: str, shape: list[int], stride: list[int]) -> None:
    """Refuse (`ValueError`) strides that do not fill the memory exactly once, in some order of
    axes.

    Otherwise two numbers would share a place, or places between them would be read.
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
    final = folder / f"round-{round:06d}"
    draft = files.temporary(final)
    with files.disk_errors(final):
        try:
            draft.mkdir(parents=True)
            files.write_bytes(draft / STATE, _packed(state))
            files.write_table(draft / ROWS, rows)
            files.write_sealed(
                draft / RECORD, {"round": round, "extra": dict(extra)}, files=(STATE, ROWS)
            )
            before = final.with_name(f"{final.name}.old")
            if final.exists():
                files.erase(before)
                final.rename(before)
            draft.rename(final)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        files.sync_folder(folder)
        files.erase(before)
        for surplus in _newest_first(folder)[keep:]:
            files.erase(surplus)


def load_latest(folder: Path, device: str | torch.device = "cpu") -> Checkpoint | None:
    """The newest complete checkpoint in ``folder``, or None if there is none.

    Newer ones that are damaged are renamed to ``<name>.corrupt-N`` with a warning, and unfinished
    ones of killed processes are removed. Only the process that holds the run's lease may call this.
    """
    for leftover in folder.glob(".*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)
    for path in _newest_first(folder):
        with files.disk_errors(path):
            try:
                return _read(path, device)
            except (DataError, FileNotFoundError) as error:
                aside = _free_name(path)
                path.rename(aside)
                log.warning("checkpoint %s is damaged and set aside as %s: %s", path, aside, error)
    return None


def _read(path: Path, device: str | torch.device) -> Checkpoint:
    """The checkpoint in a folder; `DataError` or `FileNotFoundError` if it is not complete."""
    record = files.read_sealed(path / RECORD)
    for name in (STATE, ROWS):
        if problem := files.damage(path / name, record["files"].get(name, {"size": 0})):
            raise DataError(problem)
    round, extra = record.get("round"), record.get("extra")
    if type(round) is not int or round < 0 or not isinstance(extra, dict):
        raise DataError(f"{path / RECORD}: does not say after which round it was")
    rows, _ = parquet.read(path / ROWS)
    return Checkpoint(round, load_tree(path / STATE, device), extra, rows)


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
