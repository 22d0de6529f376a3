"""Volumes from NIfTI-1 files, the format that most MRI data sets are published in.

nibabel reads the header. What the header states is held to what was read before any memory is taken
for it, as files come from others.

Source:
    R. W. Cox et al. A (sort of) new image data format standard: NIfTI-1. Human Brain Mapping, 2004.
"""

from __future__ import annotations

import gzip
import logging
import math
from typing import TYPE_CHECKING, BinaryIO, NoReturn

import numpy as np

from fl.base.errors import DataError, reading
from fl.data.archives import name_of

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Header

GZIP = b"\x1f\x8b"
HEADER = 348
"""Bytes of the header."""
KINDS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64")

_quiet = logging.Logger("nibabel", logging.CRITICAL + 1)
"""For remarks on orientation and voxel sizes, which no array depends on."""


def read(stream: BinaryIO) -> np.ndarray:
    """The volume in a ``.nii`` or ``.nii.gz`` stream.

    Axes are in the file's own order, the slowest first, as SimpleITK gives them; no orientation is
    applied.

    Returns:
        An array ``[slices, rows, columns]``: of the file's type where its header asks for no
        scaling, else float64.

    Raises:
        DataError: For a file of another kind and for a damaged one, which it names.
    """
    name, content = name_of(stream), stream.read()
    with reading(name, "is damaged", "get the archive again"):
        content = gzip.decompress(content) if content.startswith(GZIP) else content
    header, start, scaling = _header(content, name)
    shape, dtype = header.get_data_shape(), header.get_data_dtype()
    count = math.prod(shape)
    if len(content) < start + count * dtype.itemsize:
        raise DataError(f"{name}: is truncated; get the archive again")
    values = np.frombuffer(content, dtype, count, start).reshape(shape[2::-1])
    slope, intercept = scaling
    if (slope, intercept) == (1, 0):
        return values.astype(dtype.newbyteorder("="))
    return values * np.float64(slope) + intercept


def _header(content: bytes, name: str) -> tuple[Nifti1Header, int, tuple[float, float]]:
    """A header that can be gone by, where the values begin, and slope and intercept."""
    from nibabel.nifti1 import Nifti1Header

    if len(content) < HEADER:
        _fail(name, "has no NIfTI-1 header")
    with reading(name, "has a header that nobody can go by"):
        header = Nifti1Header(content[:HEADER], check=False)
        if header["sizeof_hdr"] != HEADER:
            _fail(name, "has no NIfTI-1 header")
        if header["magic"] != b"n+1":
            _fail(name, f"is of the kind {content[344:348]!r}")
        shape = header["dim"][1 : header["dim"][0] + 1]
        if not 3 <= header["dim"][0] <= 7 or min(shape) < 1 or max(shape[3:], default=1) > 1:
            _fail(name, f"has the dimensions {header['dim'].tolist()}")
        header.check_fix(_quiet, 40)
        if header.get_data_dtype().name not in KINDS:
            _fail(name, f"has values of type {header.get_data_dtype().name}")
        slope, intercept = header.get_slope_inter()
        scaling = (1.0, 0.0) if slope is None else (slope, intercept)
        return header, int(header.get_data_offset()), scaling


def _fail(name: str, problem: str) -> NoReturn:
    raise DataError(f"{name}: {problem}; allowed: one-file NIfTI-1 volumes of {', '.join(KINDS)}")
