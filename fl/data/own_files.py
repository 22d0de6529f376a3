"""What is in files of the user's own, as a hash that is kept until they change.

A published file is known by its checksum. A user's is known by its content, so that what was
computed from another one has another name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fl.base.errors import DataError, wrap_read_errors
from fl.base.files import is_folder, sha256, write_json

CACHE_FILE = "contents.json"
SETTLING_SECONDS = 2.0
"""Seconds after a change in which a file is hashed again: another may have left no trace yet."""


def change_stamp(paths: Iterable[Path]) -> str:
    """What tells that a file, or one below a folder, was changed, added or removed; "" of none.

    Of sizes, times and inodes, in the order of names; nothing is read.
    """
    traces = [[str(path), *trace] for path, trace in _file_states(paths)]
    return hashlib.sha256(json.dumps(traces).encode()).hexdigest() if traces else ""


def content_hash(paths: Sequence[Path]) -> str:
    """The SHA-256 of a file; of more than one, or of a folder's, that of their names and hashes.

    Names are taken from the folder that holds all of them, so that it may be moved. Raises
    `DataError` for a file that cannot be read.
    """
    files = [path for path, _ in _file_states(paths)]
    try:
        if files == list(paths) and len(files) == 1:
            return sha256(files[0])
        folders = [path if path.is_dir() else path.parent for path in paths]
        top = os.path.commonpath([folder.absolute() for folder in folders])
        parts = [[Path(os.path.relpath(path, top)).as_posix(), sha256(path)] for path in files]
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from error
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class ContentCache:
    """`content_hash`, remembered in ``folder`` for files whose `change_stamp` is as it was."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / CACHE_FILE

    def of(self, paths: Sequence[Path]) -> str:
        """See `content_hash`. A disk that refuses to remember it is no error."""
        key, now = json.dumps([str(path.absolute()) for path in paths]), change_stamp(paths)
        known = self._read()
        if known.get(key, {}).get("stamp") == now:
            return str(known[key]["sha256"])
        digest = content_hash(paths)
        newest = max((trace[1] for _, trace in _file_states(paths)), default=0)
        if change_stamp(paths) == now and time.time() - newest / 1e9 > SETTLING_SECONDS:
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_json(self._path, {**self._read(), key: {"stamp": now, "sha256": digest}})
        return digest

    def _read(self) -> dict[str, Any]:
        try:
            known = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}


def _file_states(paths: Iterable[Path]) -> Iterator[tuple[Path, tuple[int, int, int, int]]]:
    """Each file with its size, the later of its two times of change, modification and inode."""
    for path in paths:
        with wrap_read_errors(path, "cannot be read", "mend its name or its permissions"):
            for file in files_below(path) if is_folder(path) else [path]:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    of = file.stat()
                    times = max(of.st_mtime_ns, of.st_ctime_ns), of.st_mtime_ns
                    yield file, (of.st_size, *times, of.st_ino)


def files_below(folder: Path, inside: tuple[Path, ...] = ()) -> Iterator[Path]:
    """The files below a folder and below links to folders, sorted by path; hidden ones, which
    programs leave, are none.

    inside: The folders around it, where they really lie: a link to one of them is passed over.
    """
    real = folder.resolve()
    if real in inside:
        return
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from files_below(path, (*inside, real))
        else:
            yield path
