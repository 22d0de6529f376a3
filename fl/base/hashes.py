"""Hashes: of values, for names of runs and data, and of the user's own files.

A published file is identified by its checksum, a user's file by its content, so that results
computed from another content get another name. These hashes are cached until the files change. Code
is hashed in `fl.base.syntax`.
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
from fl.base.files import is_folder, list_files_below, sha256, write_json

CACHE_FILE = "contents.json"
SETTLING_SECONDS = 2.0
"""A hash is cached if the last change is older: a file system may not show two quick changes."""


def digest(payload: Any) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of a JSON-like value; keys may have any order."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hash_bytes(content: bytes) -> str:
    """Return the hash of a file's bytes, 16 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()[:16]


def change_stamp(paths: Iterable[Path]) -> str:
    """Return a hash that differs if a file was changed, added or removed; "" if no file exists.

    It is computed from sizes, times and inodes, in the order of names; no file is read.
    """
    traces = [[str(path), *trace] for path, trace in _file_states(paths)]
    return hashlib.sha256(json.dumps(traces).encode()).hexdigest() if traces else ""


def content_hash(paths: Sequence[Path]) -> str:
    """Return the SHA-256 of a file, or of the names and hashes of several files or of a folder.

    Names are relative to the folder that contains all files, so that it may be moved.

    Raises:
        DataError: If a file cannot be read.
    """
    files = [path for path, _ in _file_states(paths)]
    try:
        if files == list(paths) and len(files) == 1:
            return sha256(files[0])
        folders = [path if path.is_dir() else path.parent for path in paths]
        top = os.path.commonpath([folder.absolute() for folder in folders])
        hashes = [[Path(os.path.relpath(path, top)).as_posix(), sha256(path)] for path in files]
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from error
    return hashlib.sha256(json.dumps(hashes).encode()).hexdigest()


class ContentCache:
    """Cache of `content_hash` in a folder, valid while the `change_stamp` stays the same.

    Args:
        folder: The folder of the cache file.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / CACHE_FILE

    def hash_of(self, paths: Sequence[Path]) -> str:
        """Return `content_hash` of the files; a cache that cannot be written is no error."""
        key, stamp = json.dumps([str(path.absolute()) for path in paths]), change_stamp(paths)
        cache = self._read()
        if cache.get(key, {}).get("stamp") == stamp:
            return str(cache[key]["sha256"])
        digest = content_hash(paths)
        newest = max((trace[1] for _, trace in _file_states(paths)), default=0)
        if change_stamp(paths) == stamp and time.time() - newest / 1e9 > SETTLING_SECONDS:
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_json(self._path, {**self._read(), key: {"stamp": stamp, "sha256": digest}})
        return digest

    def _read(self) -> dict[str, Any]:
        try:
            cache = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return cache if isinstance(cache, dict) else {}


def _file_states(paths: Iterable[Path]) -> Iterator[tuple[Path, tuple[int, int, int, int]]]:
    """Yield each file with its size, time of last change, time of modification and inode."""
    for path in paths:
        with wrap_read_errors(path, "cannot be read", "correct its name or its permissions"):
            for file in list_files_below(path) if is_folder(path) else [path]:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    status = file.stat()
                    times = max(status.st_mtime_ns, status.st_ctime_ns), status.st_mtime_ns
                    yield file, (status.st_size, *times, status.st_ino)
