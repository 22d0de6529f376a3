"""Numbers of files of others, before they are converted."""

from __future__ import annotations

import numpy as np
import pytest

from fl.base.errors import DataError
from fl.data.whole import whole


@pytest.mark.parametrize(
    ("values", "expected", "dtype"),
    [
        ([0, 9, np.int8(3)], [0, 9, 3], np.int64),
        ((), [], np.int64),
        (np.array([[1.0], [9.0]]), [[1], [9]], np.int64),
        (np.array([1, 2], np.uint8), [1, 2], np.uint8),
        (np.empty((0, 3), np.float32), [], np.int64),
    ],
)
def test_whole_numbers_of_any_type(values, expected, dtype):
    found = whole(values, 0, 9, "file", "labels")
    assert found.dtype == dtype
    assert found.tolist() == expected


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([0, 1.7], r"labels\[1\] is 1\.7; allowed: whole numbers from 0 to 9"),
        ([float("nan")], r"labels\[0\] is nan"),
        ([2**70], r"labels\[0\] is 11805"),
        ([True], r"labels\[0\] is True"),
        (["a"], r"labels\[0\] is 'a'"),
        ([[1], [2]], r"labels\[0\] is \[1\]"),
        (["x" * 10_000], r"labels\[0\] is 'x{5,20}\.\.\.x{5,20}'; allowed"),
        ("12", "labels is a str; allowed: a list or an array of whole numbers from 0 to 9"),
        (np.array([0, 300.7]), r"labels\[1\] is 300\.7"),
        (np.array([[0, np.nan]]), r"labels\[0, 1\] is nan"),
        (np.array(["a"]), "labels is an array of <U1"),
        (np.array([1], object), "labels is an array of object"),
    ],
)
def test_anything_else_is_named(values, problem):
    with pytest.raises(DataError, match=f"file: {problem}"):
        whole(values, 0, 9, "file", "labels")
