"""Rows of equal size in a file, which may be larger than memory.

The file is read and written by calls and not mapped: so a full disk is an error and not a signal,
and what the system keeps of the file is no memory of the process. A row never changes; its place is
written again when nobody holds it any more.

A checkpoint has the whole file under a further name (a hard link), and of its own rows the places
and SHA-256 digests. So it takes as long as the rows that are new.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from fl.base import files
from fl.base.errors import DataError, FedloomError

CHUNK_BYTES = 2**22
"""Bytes that are copied at a time."""


class Place:
    """The place of a row in a file; it is held as long as this object lives.

    Attributes:
        number: Number of the row in the file.
        digest: SHA-256 of the row; empty before `RowFile.seal`.
    """

    __slots__ = ("_file", "digest", "number")

    def __init__(self, file: RowFile, number: int) -> None:
        self._file, self.number, self.digest = file, number, b""

    def __del__(self) -> None:
        self._file.free.append(self.number)


class RowFile:
    """A file of rows. It is made when the first row is written, and removed with this object.

    Attributes:
        row_bytes: Size of a row in bytes.
        folder: Folder of the file. None: the folder of temporary files (``TMPDIR``), where it has
            no name, so that a killed process leaves nothing.
        free: Numbers of rows that nobody holds.
    """

    def __init__(self, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self.folder: Path | None = None
        self.free: list[int] = []
        self._count, self._handle = 0, -1

    def write(self, rows: Iterable[np.ndarray]) -> list[Place]:
        """Write rows.

        Args:
            rows: The rows, uint8 [row_bytes] each.

        Returns:
            Their places.

        Raises:
            FedloomError: If the disk is full or cannot be written; other rows stay as they are.
        """
        places = []
        with self._disk_errors():
            if self._handle < 0:
                self._open()
            for row in rows:
                if not self.free:
                    self.free.append(self._count)
                    self._count += 1
                places.append(Place(self, self.free.pop()))
                _write(self._handle, row, places[-1].number * self.row_bytes)
        return places

    def read(self, place: Place, content: np.ndarray, begin: int = 0) -> None:
        """Fill ``content``, uint8 [n], with the bytes of a row that begin at ``begin``."""
        _read(self._handle, content, place.number * self.row_bytes + begin)

    def seal(self, places: Iterable[Place]) -> None:
        """Force the file to the disk, and compute the digests that these rows do not have yet."""
        row = np.empty(self.row_bytes, np.uint8)
        for place in places:
            if not place.digest:
                self.read(place, row)
                place.digest = _digest(row)
        with self._disk_errors():
            os.fsync(self._handle)

    def link(self, target: Path) -> None:
        """Give the file a further name; where the file system has no hard links, copy it.

        Its first name may be gone by then, with the workspace of a run that has ended.
        """
        name = f"/proc/self/fd/{self._handle}"
        try:
            # A descriptor of a folder, which counts for relative names alone, makes Python call
            # the function of the system that follows this symbolic link to the file.
            os.link(name, target, src_dir_fd=self._handle)
        except OSError:
            with files.atomic_writer(target) as copy:
                for begin in range(0, self._count * self.row_bytes, CHUNK_BYTES):
                    copy.write(os.pread(self._handle, CHUNK_BYTES, begin))

    def _open(self) -> None:
        folder = self.folder or Path(tempfile.gettempdir())
        path = files.temporary_name(folder / "clients")
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._handle = handle
        weakref.finalize(self, _close, handle, path)
        if self.folder is None:
            path.unlink()

    @contextlib.contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            with files.disk_errors(self.folder or Path(tempfile.gettempdir())):
                yield
        except FedloomError as error:
            problem = f"{error}. States of clients that memory does not hold are kept there"
            advice = "" if self.folder else "another folder as TMPDIR"
            raise FedloomError(problem, advice=advice) from error


def check_rows(path: Path, row_bytes: int, numbers: Sequence[int], digests: np.ndarray) -> None:
    """Compare some rows of a file with their digests.

    Args:
        path: The file.
        row_bytes: Size of a row in bytes.
        numbers: The numbers of these rows.
        digests: SHA-256 of each, uint8 [m, 32].

    Raises:
        DataError: If a row is missing or was changed.
        FileNotFoundError: If there is no file.
    """
    expected = iter(digests)
    for rows in read_rows(path, row_bytes, numbers):
        for row in rows:
            if _digest(row) != next(expected).tobytes():
                raise DataError(f"{path}: a row does not match its SHA-256: it was damaged")


def read_rows(path: Path, row_bytes: int, numbers: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield some rows of a file, uint8 [m, row_bytes], a chunk at a time.

    Args:
        path: The file.
        row_bytes: Size of a row in bytes.
        numbers: The numbers of these rows.

    Raises:
        DataError: If a row is missing.
        FileNotFoundError: If there is no file.
    """
    with files.open_regular(path) as file:
        size = rows_at_once(row_bytes)
        for begin in range(0, len(numbers), size):
            chunk = numbers[begin : begin + size]
            rows = np.empty((len(chunk), row_bytes), np.uint8)
            for number, row in zip(chunk, rows, strict=True):
                try:
                    _read(file.fileno(), row, number * row_bytes)
                except (EOFError, OverflowError, OSError) as error:
                    raise DataError(f"{path}: row {number} cannot be read ({error})") from error
            yield rows


def rows_at_once(row_bytes: int) -> int:
    """Return how many rows of this size are copied at a time."""
    return max(1, CHUNK_BYTES // max(1, row_bytes))


def _digest(row: np.ndarray) -> bytes:
    return hashlib.sha256(row.data).digest()


def _write(handle: int, row: np.ndarray, offset: int) -> None:
    """Write a row at an offset. A disk that becomes full may take a part of it."""
    content = row.data
    while content:
        count = os.pwrite(handle, content, offset)
        content, offset = content[count:], offset + count


def _read(handle: int, row: np.ndarray, offset: int) -> None:
    """Fill a row from an offset."""
    content = row.data
    while content:
        count = os.preadv(handle, [content], offset)
        if not count:
            raise EOFError("the file ends before it")
        content, offset = content[count:], offset + count


def _close(handle: int, path: Path) -> None:
    os.close(handle)
    with contextlib.suppress(OSError):
        path.unlink()
