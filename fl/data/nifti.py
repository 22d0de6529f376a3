"""Volumes from NIfTI-1 files, the format that most MRI data sets are published in.

R. W. Cox et al. A (sort of) new image data format standard: NIfTI-1. Human Brain Mapping, 2004; the
header's layout is that of the reference ``nifti1.h``.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from typing import BinaryIO

import numpy as np

from fl.data.archives import name_of
from fl.errors import DataError

HEADER = 348
"""Bytes of the header, which its first field states: that tells the byte order."""

GZIP = b"\x1f\x8b"

TYPES = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4"}
"""The header's codes of plain types."""


def read(stream: BinaryIO) -> np.ndarray:
    """The volume in a ``.nii`` or ``.nii.gz`` stream, ``[slices, rows, columns]``, scaled.

    Axes are in the file's own order, the slowest first, as SimpleITK gives them; no orientation is
    applied. Values are of the file's type where its header asks for no scaling, else float64.
    Raises `DataError` that names a file of another kind, or a damaged one.
    """
    name, content = name_of(stream), stream.read()
    try:
        if content.startswith(GZIP):
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{name}: is damaged ({error}); get the archive again") from error
    order = "<" if content[:4] == struct.pack("<i", HEADER) else ">"
    if len(content) < HEADER or content[:4] != struct.pack(f"{order}i", HEADER):
        _fail(name, "has no NIfTI-1 header")
    if content[344:348] != b"n+1\0":
        _fail(name, f"is of the kind {content[344:348]!r}")
    return _volume(content, order, name)


def _volume(content: bytes, order: str, name: str) -> np.ndarray:
    dims = struct.unpack_from(f"{order}8h", content, 40)
    (code,) = struct.unpack_from(f"{order}h", content, 70)
    start, slope, intercept = struct.unpack_from(f"{order}3f", content, 108)
    shape = dims[1 : dims[0] + 1]
    if not 3 <= dims[0] <= 7 or min(shape) < 1 or any(extra != 1 for extra in shape[3:]):
        _fail(name, f"has the dimensions {list(dims)}")
    if code not in TYPES:
        _fail(name, f"has values of type {code}")
    count, dtype = int(np.prod(shape)), np.dtype(order + TYPES[code])
    if len(content) < int(start) + count * dtype.itemsize:
        raise DataError(f"{name}: is truncated; get the archive again")
    values = np.frombuffer(content, dtype, count, int(start)).reshape(shape[2::-1])
    # No scaling where the slope is 0, by the standard, or no number, as some programs write it.
    if slope == 0 or not np.isfinite(slope) or (slope, intercept) == (1, 0):
        return values.astype(dtype.newbyteorder("="))
    return values * slope + intercept


def _fail(name: str, problem: str) -> None:
    types = ", ".join(np.dtype(t).name for t in TYPES.values())
    raise DataError(f"{name}: {problem}; allowed: one-file NIfTI-1 volumes of {types}")
