from __future__ import annotations

import gzip
import io
import struct

import numpy as np
import pytest
from sources.prostate_mri import nifti as file_of

from fl.base.errors import DataError
from fl.data import nifti


def read(content):
    stream = io.BytesIO(content)
    stream.name = "scan.nii"
    return nifti.read(stream)


def ramp(dtype):
    return np.arange(2 * 3 * 4).reshape(2, 3, 4).astype(dtype)


@pytest.mark.parametrize("dtype", ["u1", "i2", "f8"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_plain_volumes_come_out_as_they_are(dtype, order):
    found = read(file_of(ramp(dtype), order=order))
    assert found.dtype == np.dtype(dtype)
    assert np.array_equal(found, ramp(dtype))


def test_scaling_of_the_header_is_applied():
    found = read(file_of(ramp("i2"), slope=0.5, intercept=3.0))
    assert found.dtype == np.float64
    assert np.array_equal(found, ramp("i2") * 0.5 + 3)
    for none in (0.0, float("nan")):
        assert np.array_equal(read(file_of(ramp("i2"), slope=none, intercept=3.0)), ramp("i2"))
    assert np.array_equal(read(file_of(ramp("i2"), intercept=3.0)), ramp("i2") + 3)


def test_two_dimensions_more_of_one_are_taken_and_a_series_is_not():
    content = bytearray(file_of(ramp("i2")))
    struct.pack_into("<8h", content, 40, 5, 4, 3, 2, 1, 1, 1, 1)
    assert read(bytes(content)).shape == (2, 3, 4)
    struct.pack_into("<8h", content, 40, 4, 4, 3, 1, 2, 1, 1, 1)
    with pytest.raises(DataError, match=r"scan\.nii: has the dimensions \[4, 4, 3, 1, 2"):
        read(bytes(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: b"", "has no NIfTI-1 header"),
        (lambda c: c[:344] + b"ni1\0" + c[348:], r"is of the kind b'ni1\\x00'"),
        (lambda c: c[:70] + struct.pack("<h", 128) + c[72:], "has values of type void24"),
        (lambda c: c[:70] + struct.pack("<h", 77) + c[72:], "has a header .* code 77"),
        (lambda c: c[:108] + struct.pack("<f", -5) + c[112:], "has a header .* offset -5"),
        (lambda c: c[:108] + struct.pack("<f", float("nan")) + c[112:], "has a header .* NaN"),
        (lambda c: c[:112] + struct.pack("<2f", 2, float("inf")) + c[120:], "has a header .* inf"),
        (lambda c: c[:40] + struct.pack("<4h", 3, 32767, 32767, 32767) + c[48:], "is truncated"),
        (lambda c: c[:40] + struct.pack("<4h", 3, -4, 3, 2) + c[48:], "has the dimensions"),
        (lambda c: c[:-1], "is truncated"),
        (lambda c: gzip.compress(c)[:-9], "is damaged"),
    ],
)
def test_other_files_are_refused_by_name(change, message):
    with pytest.raises(DataError, match=rf"^scan\.nii: {message}"):
        read(change(file_of(ramp("i2"))))
