"""Moving finished runs between stores: from folder to folder, or through a tar file.

A run is checked at its source and again when it arrives, and it appears in the target by one
rename. A run that the target has already is not changed. The same numbers, to within
`sameness.TOLERANCE`, are skipped. Others are told, where rounding can explain them: in training it
grows, so that a run in another stack or on another machine may end some samples apart. Where both
were computed alike, other numbers under the same name are a conflict.
"""

from __future__ import annotations

import contextlib
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fl.base import files
from fl.base.errors import DataError, FedloomError
from fl.store import maintenance, sameness
from fl.store.layout import KEPT, ON_DEMAND, RECORD, is_name
from fl.store.store import Store

NEW, THERE, BUSY, CONFLICT, DAMAGED = (
    "new",
    "already there",
    "being computed there",
    "in conflict",
    "damaged",
)
MEMBERS = 100_000
"""The most files that are unpacked from a tar file: those of 25,000 runs, in about 20 seconds."""


@dataclass(frozen=True)
class Moved:
    """The outcome for a run: one of the words above, and a line on what went wrong, if anything."""

    run: str
    outcome: str
    why: str = ""


def bring(run: str, source: Store, target: Store) -> Moved:
    """Copy a finished run into ``target``, which keeps what it has."""
    if problems := maintenance.problems(source, run):
        return Moved(run, DAMAGED, "; ".join(problems))
    kept = [name for name in ON_DEMAND if source.has(run, (name,))]
    if target.has(run):
        if differing := sameness.differing(run, source, target):
            why = f"{target.place(run)}: has other numbers than {source.place(run)} ({differing})"
            if apart := sameness.computed_apart(run, source, target):
                return Moved(run, THERE, f"{why}, as its {apart} is another; it is kept")
            return Moved(run, CONFLICT, f"{why}; remove the one that you do not trust")
        if target.has(run, kept):
            return Moved(run, THERE)
    with target.open(run, kept, wait=False) as workspace:
        if workspace is None:
            return Moved(run, THERE if target.has(run) else BUSY)
        return Moved(run, NEW if workspace.adopt(source.place(run)) else THERE)


def is_tar(path: Path) -> bool:
    """Whether a place is a tar file, by its name."""
    if path.suffix in (".gz", ".tgz", ".zip", ".xz", ".bz2", ".zst"):
        raise FedloomError(f"{path}: Allowed: a folder, or a file named *.tar (runs pack badly)")
    return path.suffix == ".tar"


def pack(runs: Iterable[str], source: Store, path: Path) -> Iterator[Moved]:
    """Write runs to a new tar file; it appears, whole, when the last one is in it."""
    if path.exists():
        raise FedloomError(f"{path}: is there already; choose another name")
    with files.disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.atomic_writer(path) as file, tarfile.open(fileobj=file, mode="w") as tar:
            for run in runs:
                if problems := maintenance.problems(source, run):
                    yield Moved(run, DAMAGED, "; ".join(problems))
                    continue
                for name in (RECORD, *source.record(run)["files"]):
                    tar.add(source.place(run) / name, f"{run}/{name}", filter=_plain)
                yield Moved(run, NEW)


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without owner and time, so that the same runs give the same file."""
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Store]:
    """A store to copy runs from: a folder as it is, a tar file unpacked until the context ends.

    Raises:
        FedloomError: If there is no such place, or if the tar file is damaged, has other files than
            those of runs, or has more of them than `MEMBERS`.
    """
    if not path.exists():
        raise FedloomError(f"{path}: does not exist")
    if not is_tar(path):
        if not path.is_dir():
            raise FedloomError(f"{path}: Allowed: a folder, or a file named *.tar")
        yield Store(path)
        return
    with files.disk_errors(path), tempfile.TemporaryDirectory(prefix="fedloom-") as folder:
        try:
            _unpack(path, Path(folder))
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise DataError(f"{path}: is truncated, damaged or no tar file ({error})") from error
        yield Store(Path(folder))


def _unpack(path: Path, folder: Path) -> None:
    """Write the files of a tar file into a folder. A plain tar holds no more than its own bytes."""
    with files.open_regular(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        for number, info in enumerate(tar):
            run, _, name = info.name.removeprefix("./").partition("/")
            if info.isdir() and not name:
                continue
            regular = info.isreg() and not info.issparse()
            if not is_name(run) or name not in (RECORD, *KEPT) or not regular:
                allowed = ", ".join(f"RUN/{known}" for known in (RECORD, *KEPT))
                raise DataError(f"{path}: has {info.name[:200]!r}. Allowed: files {allowed}")
            if number >= MEMBERS:
                raise DataError(f"{path}: has more files than are unpacked. Allowed: {MEMBERS:,}")
            tar.extract(info, folder, filter="data")
