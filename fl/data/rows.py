"""Arrays row by row: one on disk that grows, and one that is read as it comes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fl.base.errors import DataError, reading
from fl.data.archives import name_of


class Rows:
    """A ``.npy`` file under construction; it is whole after `close`.

    Only the rows that are being added are in memory.

    Raises:
        OSError: If the disk is full.
    """

    def __init__(self, path: Path, first: np.ndarray) -> None:
        self._dtype, self._shape, self._count = first.dtype, first.shape[1:], 0
        self._file = path.open("w+b")
        self._header()
        self._begin = self._file.tell()

    def add(self, rows: np.ndarray) -> None:
        """Write ``rows`` ``[n, ...]``, of the type and shape of the first ones."""
        if (rows.dtype, rows.shape[1:]) != (self._dtype, self._shape):
            found, expected = f"{rows.dtype} {rows.shape[1:]}", f"{self._dtype} {self._shape}"
            raise ValueError(f"{self._file.name}: rows are {found}; allowed: {expected}")
        self._file.write(np.ascontiguousarray(rows).data)
        self._count += len(rows)

    def close(self) -> None:
        """Write how many rows there are."""
        if not self._file.closed:
            self._file.seek(0)
            self._header()
            if self._file.tell() != self._begin:
                raise RuntimeError("numpy no longer leaves room in the header of an array")
            self._file.close()

    def _header(self) -> None:
        # numpy pads headers so that the first dimension can grow without moving the data.
        described = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self._count, *self._shape),
        }
        np.lib.format.write_array_header_1_0(self._file, described)


def pieces(stream: BinaryIO, rows: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """A ``.npy`` stream, up to ``rows`` rows at a time.

    Yields:
        The number of the first row, how many rows there are in all, and the piece.

    Raises:
        DataError: If the stream is no such array, holds objects, or ends early; it names the
            stream.
    """
    name = name_of(stream)
    with reading(name, "is no array of numpy's"):
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read = np.lib.format.read_array_header_2_0
        shape, by_columns, dtype = read(stream)
    if by_columns or dtype.hasobject or not shape:
        raise DataError(f"{name}: is an array of {dtype} {shape}; allowed: numbers, row by row")
    width = dtype.itemsize * int(np.prod(shape[1:]))
    for first in range(0, shape[0], rows):
        count = min(rows, shape[0] - first)
        content = stream.read(count * width)
        if len(content) != count * width:
            raise DataError(
                f"{name}: ends early, in row {first + len(content) // width:,}; fetch it again"
            )
        yield first, shape[0], np.frombuffer(content, dtype).reshape(count, *shape[1:])
