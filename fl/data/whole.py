"""Whole numbers as files of others have them: labels, pixels; checked before they are converted."""

from __future__ import annotations

import reprlib
from typing import Any

import numpy as np

from fl.base.errors import DataError


def whole(values: Any, low: int, high: int, name: str, key: str) -> np.ndarray:
    """Whole numbers from ``low`` to ``high``, as an array of the shape of ``values``.

    Whole numbers of another type (``3.0``) are taken for what they are. An array of whole numbers
    keeps its type; everything else becomes int64.

    Args:
        values: A list or an array.
        name, key: The file and its key that errors name.

    Raises:
        DataError: For the first value that is no such number; it names its place.
    """
    allowed = f"whole numbers from {low} to {high}"
    if isinstance(values, np.ndarray):
        return _array(values, low, high, f"{name}: {key}", allowed)
    if not isinstance(values, list | tuple):
        kind = type(values).__name__
        raise DataError(f"{name}: {key} is a {kind}; allowed: a list or an array of {allowed}")
    for place, value in enumerate(values):
        number = isinstance(value, int | float | np.integer | np.floating)
        if not number or isinstance(value, bool) or not low <= value <= high or value % 1:
            raise DataError(f"{name}: {key}[{place}] is {reprlib.repr(value)}; allowed: {allowed}")
    return np.array(values, np.int64)


def _array(values: np.ndarray, low: int, high: int, at: str, allowed: str) -> np.ndarray:
    if values.dtype.kind not in "iuf":
        raise DataError(f"{at} is an array of {values.dtype}; allowed: {allowed}")
    # Of pixels the type alone says that nothing can be wrong, and there are many of them.
    if values.dtype == np.uint8 and low <= 0 and high >= 255:
        return values
    fits = (values >= low) & (values <= high)
    if values.dtype.kind == "f":
        fits &= values == np.floor(values)
    if not fits.all():
        place = np.unravel_index(int(np.argmin(fits)), values.shape)
        where = ", ".join(str(int(n)) for n in place)
        raise DataError(f"{at}[{where}] is {values[place]}; allowed: {allowed}")
    return values if values.dtype.kind in "iu" else values.astype(np.int64)
