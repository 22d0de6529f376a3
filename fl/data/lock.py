"""The checksums of files whose publishers state none: what came first is what later ones must be.

``config/sources.lock.json`` is ``{data set: {file: SHA-256}}``, sorted. It belongs with the config
under version control: everyone who runs the studies is then held to the same files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fl.base.errors import wrap_read_errors
from fl.base.files import disk_errors, parse_json, write_json

NAME = "sources.lock.json"
REMEDY = (
    "bring it back from version control, or delete it so that the next download of each file is"
    " recorded anew"
)


@dataclass(frozen=True)
class Lock:
    """The part of a lock file that is about one data set."""

    path: Path
    dataset: str

    def expected(self, name: str) -> str | None:
        """The SHA-256 that the file ``name`` must have, or None if it was never fetched."""
        return self._read().get(self.dataset, {}).get(name)

    def record(self, name: str, sha256: str) -> None:
        """Hold the file ``name`` to ``sha256`` from now on, unless an entry is there already."""
        with disk_errors(self.path), alone_in(self.path.parent):
            known = self._read()
            known.setdefault(self.dataset, {}).setdefault(name, sha256)
            write_json(self.path, {key: dict(sorted(known[key].items())) for key in sorted(known)})

    def _read(self) -> dict[str, dict[str, str]]:
        if not self.path.exists():
            return {}
        with wrap_read_errors(
            self.path, "cannot be read as checksums of files by data set", REMEDY
        ):
            known = parse_json(self.path.read_bytes())
            return {dataset: dict(sums.items()) for dataset, sums in known.items()}


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold ``folder`` against other processes that ask for it in the same way."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems lock no folders. Writes are atomic without it as well.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
