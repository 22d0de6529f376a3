"""Whole numbers as files of others have them: labels, pixels; checked before they are converted."""

from __future__ import annotations

from typing import Any

import numpy as np

from fl.base.errors import DataError, wrap_read_errors


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
    at, allowed = f"{name}: {key}", f"whole numbers from {low} to {high}"
    with wrap_read_errors(at, "is no list of numbers"):
        array = np.asarray(values)
    if array.dtype.kind not in "iuf":
        raise DataError(f"{at} is an array of {array.dtype}. Allowed: {allowed}")
    # Of pixels the type alone says that nothing can be wrong, and there are many of them.
    if array.dtype == np.uint8 and low <= 0 and high >= 255:
        return array
    fits = (array >= low) & (array <= high)
    if array.dtype.kind == "f":
        fits &= array == np.floor(array)
    if not fits.all():
        place = np.unravel_index(int(np.argmin(fits)), array.shape)
        location = ", ".join(str(int(n)) for n in place)
        raise DataError(f"{at}[{location}] is {array[place]}. Allowed: {allowed}")
    return array if array is values and array.dtype.kind in "iu" else array.astype(np.int64)
