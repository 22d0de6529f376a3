"""An array on disk that grows row by row."""

from __future__ import annotations

from pathlib import Path

import numpy as np


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
            kind, expected = f"{rows.dtype} {rows.shape[1:]}", f"{self._dtype} {self._shape}"
            raise ValueError(f"{self._file.name}: rows are {kind}. Allowed: {expected}")
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
