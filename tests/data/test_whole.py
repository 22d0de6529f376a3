"""Numbers of files of others, before they are converted."""

from __future__ import annotations

import numpy as np
import pytest

from fl.base.errors import DataError
from fl.data.readers.validation import check_whole_numbers


@pytest.mark.parametrize(
    ("values", "expected", "dtype"),
    [
        ([0, 9, np.int8(3)], [0, 9, 3], np.int64),
        (np.array([[1.0], [9.0]]), [[1], [9]], np.int64),
        (np.array([1, 2], np.uint8), [1, 2], np.uint8),
        ([], [], np.int64),
    ],
)
def test_whole_numbers_of_any_type(values, expected, dtype):
    numbers = check_whole_numbers(values, 0, 9, "file", "labels")
    assert numbers.dtype == dtype
    assert numbers.tolist() == expected


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([0, 1.7], r"labels\[1\] is 1\.7. Allowed: whole numbers from 0 to 9"),
        ([2**70], "labels is an array of object"),
        ([True], "labels is an array of bool"),
        (["a"], "labels is an array of <U1"),
        ([[1], [2, 3]], "labels: is no list of numbers"),
        (np.array([[0, np.nan]]), r"labels\[0, 1\] is nan"),
    ],
)
def test_anything_else_is_named(values, problem):
    with pytest.raises(DataError, match=f"file: {problem}"):
        check_whole_numbers(values, 0, 9, "file", "labels")
