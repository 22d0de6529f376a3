"""Copies of finished runs between stores: from folder to folder, or through a tar file.

A run is checked at its source and again at its target, where it appears by one rename. A run that
exists in the target is not changed. If its numbers are equal to within `TOLERANCE`, it is skipped:
different machines and backends compute the same run with different last digits. If they differ, and
the two runs were computed in different stacks or on different machines, rounding can explain that,
because it grows in training: the difference is reported. If both were computed in the same way, the
difference is a conflict. For portable runs the machine does not count, and any difference does
(`must_be_equal`).
"""

from __future__ import annotations

import contextlib
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fl.base import files
from fl.base.arithmetic import NATIVE, PORTABLE
from fl.base.errors import DataError, FedloomError
from fl.store import run_check
from fl.store.run_check import KEY
from fl.store.run_record import (
    METRICS,
    OPTIONAL_FILES,
    RECORD,
    RUN_FILES,
    TRACES,
    WEIGHTS,
    RunRecord,
    is_name,
)
from fl.store.store import Store

if TYPE_CHECKING:
    import numpy as np

    from fl.api.trees import Tree


TOLERANCE = 1e-6
"""Numbers a and b are equal if abs(a - b) <= TOLERANCE * (1 + abs(b)), or if both are NaN."""

SOFTWARE = ("python", "torch", "numpy", "mkl", "onednn")
"""Versions that decide the bits of a run."""

MACHINE = ("device", "threads", "processor", "instructions")
"""What decides no bit of a portable run."""

EXACT = "both runs are portable, with equal versions, so that their bits must be equal"

NEW, EXISTING, BUSY, CONFLICT, DAMAGED = (
    "new",
    "existing",
    "being computed in the target",
    "in conflict",
    "damaged",
)

MAX_MEMBERS = 100_000
"""Largest number of files in a tar file: those of 25,000 runs, unpacked in about 20 seconds."""


@dataclass(frozen=True)
class Copied:
    """Outcome of the copy of a run.

    Attributes:
        run: The run.
        outcome: One of the words above.
        reason: The problem or difference; empty without one.
    """

    run: str
    outcome: str
    reason: str = ""


def copy_run(run: str, source: Store, target: Store, results: Path | None = None) -> Copied:
    """Copy a finished run into ``target``; a run that exists there stays as it is.

    Args:
        run: The run.
        source: The store that has it.
        target: The store that gets it.
        results: Folder of results with partitions, to compare clients with; None: without that.
    """
    if problems := run_check.find_problems(source, run, results):
        return Copied(run, DAMAGED, "; ".join(problems))
    optional = [name for name in OPTIONAL_FILES if source.has(run, (name,))]
    if target.has(run):
        records = [RunRecord.from_json(store.record(run)) for store in (source, target)]
        is_exact = must_be_equal(*records)
        if differing := first_difference(run, source, target, 0.0 if is_exact else TOLERANCE):
            reason = f"{target.folder(run)}: differs from {source.folder(run)} ({differing})"
            if causes := ", ".join(find_causes(*records)):
                return Copied(run, EXISTING, f"{reason}, because its {causes} differs; it stays")
            reason += f", although {EXACT}" if is_exact else ""
            return Copied(run, CONFLICT, f"{reason}. Try: remove the run that you do not trust")
        if target.has(run, optional):
            return Copied(run, EXISTING)
    with target.open(run, optional, wait=False) as workspace:
        if workspace is None:
            return Copied(run, EXISTING if target.has(run) else BUSY)
        return Copied(run, NEW if workspace.adopt(source.folder(run)) else EXISTING)


def is_tar(path: Path) -> bool:
    """Whether a path is a tar file, by its name.

    Raises:
        FedloomError: For names of compressed files.
    """
    if path.suffix in (".gz", ".tgz", ".zip", ".xz", ".bz2", ".zst"):
        raise FedloomError(
            f"{path}: has an ending of a compressed file, but runs do not compress well",
            "a folder, or a file named *.tar",
        )
    return path.suffix == ".tar"


def write_tar(runs: Iterable[str], source: Store, path: Path) -> Iterator[Copied]:
    """Write runs to a new tar file, which appears when it is complete."""
    if path.exists():
        raise FedloomError(f"{path}: exists already", advice="choose another name")
    with files.disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.atomic_writer(path) as file, tarfile.open(fileobj=file, mode="w") as tar:
            for run in runs:
                if problems := run_check.find_problems(source, run):
                    yield Copied(run, DAMAGED, "; ".join(problems))
                    continue
                for name in (RECORD, *source.record(run)["files"]):
                    tar.add(source.folder(run) / name, f"{run}/{name}", filter=_anonymous)
                yield Copied(run, NEW)


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove owner and time, so that the same runs make the same file."""
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


@contextlib.contextmanager
def open_source(path: Path) -> Iterator[Store]:
    """Open a store to copy runs from: a folder, or a tar file that is unpacked for the context.

    Raises:
        FedloomError: If the path does not exist, or if the tar file is damaged, has files that do
            not belong to runs, or has more than `MAX_MEMBERS` files.
    """
    if not path.exists():
        raise FedloomError(f"{path}: does not exist")
    if not is_tar(path):
        if not path.is_dir():
            raise FedloomError(f"{path}: is no folder", "a folder, or a file named *.tar")
        yield Store(path)
        return
    with files.disk_errors(path), tempfile.TemporaryDirectory(prefix="fedloom-") as folder:
        try:
            _unpack(path, Path(folder))
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise DataError(f"{path}: is truncated, damaged or no tar file ({error})") from error
        yield Store(Path(folder))


def _unpack(path: Path, folder: Path) -> None:
    """Write the files of a tar file, which is not compressed, into a folder."""
    with files.open_regular(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        for number, info in enumerate(tar):
            run, _, name = info.name.removeprefix("./").partition("/")
            if info.isdir() and not name:
                continue
            is_regular = info.isreg() and not info.issparse()
            if not is_name(run) or name not in (RECORD, *RUN_FILES) or not is_regular:
                allowed = ", ".join(f"RUN/{file_name}" for file_name in (RECORD, *RUN_FILES))
                raise DataError(f"{path}: contains {info.name[:200]!r}", f"files {allowed}")
            if number >= MAX_MEMBERS:
                raise DataError(f"{path}: has too many files", f"at most {MAX_MEMBERS:,}")
            info.mtime = 0  # It is not used, and a foreign one may be no time of this machine.
            tar.extract(info, folder, filter="data")


def first_difference(run: str, store: Store, reference: Store, tolerance: float) -> str:
    """Return the first file of both stores whose numbers differ; empty if there is none."""
    for name in (METRICS, WEIGHTS, TRACES):
        entries = [location.record(run)["files"].get(name) for location in (store, reference)]
        if all(entries) and entries[0] != entries[1]:
            first, second = (dict(_arrays(location, run, name)) for location in (store, reference))
            if first.keys() != second.keys() or not all(
                _are_equal(first[key], second[key], tolerance) for key in first
            ):
                return name
    return ""


def find_causes(first: RunRecord, second: RunRecord) -> dict[str, tuple[str, str]]:
    """Return what may make two computations of a run differ: both values, by their name.

    The processor and its instructions decide no bit where both are portable.
    """
    former, latter = _computation(first), _computation(second)
    is_portable = former["arithmetic"] == latter["arithmetic"] == PORTABLE
    return {
        name: (former[name], latter[name])
        for name in former
        if former[name] != latter[name]
        and not (is_portable and name in MACHINE)
        and not (name in SOFTWARE and "" in (former[name], latter[name]))
    }


def must_be_equal(first: RunRecord, second: RunRecord) -> bool:
    """Whether two computations must give the same bits: both are portable, nothing else differs."""
    is_portable = first.execution.arithmetic == second.execution.arithmetic == PORTABLE
    return is_portable and not find_causes(first, second)


def _computation(run: RunRecord) -> dict[str, str]:
    """Return by name what decides the digits of a run; empty texts for what is unknown."""
    execution = run.execution
    values = {
        "code": ", ".join(f"{key} {name}" for key, name in sorted(run.code.items())),
        "trained_as": run.trained_as,
        "arithmetic": execution.arithmetic or NATIVE,
        "stack": ", ".join(execution.stack or [run.run]),
        "backend": execution.backend,
        "processes": execution.processes,
        "device": execution.device,
        "threads": execution.threads,
        "processor": run.environment.get("processor"),
        "instructions": run.environment.get("instructions"),
        **{name: run.versions.get(name) for name in SOFTWARE},
    }
    return {name: "" if value is None else str(value) for name, value in values.items()}


def _arrays(store: Store, run: str, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """Return columns of a run's sorted metrics, or leaves of its tensors."""
    if name == METRICS:
        rows = store.metrics(run).sort_values(KEY)
        yield from ((str(column), rows[column].to_numpy()) for column in rows)
    else:
        yield from _leaves(store.weights(run) if name == WEIGHTS else store.traces(run), "")


def _leaves(tree: Tree, prefix: str) -> Iterator[tuple[str, np.ndarray]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value.double().numpy()


def _are_equal(array: np.ndarray, reference: np.ndarray, tolerance: float) -> bool:
    import numpy as np

    if array.shape != reference.shape or array.dtype.kind != "f":
        return np.array_equal(array, reference)
    return np.allclose(array, reference, rtol=tolerance, atol=tolerance, equal_nan=True)
