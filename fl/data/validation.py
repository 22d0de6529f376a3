"""What was read, held to what is published.

Whole numbers as files of others have them: labels, pixels; checked before they are converted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fl.base.errors import DataError, wrap_read_errors


def check_sizes(
    sizes: Mapping[str, int],
    published: Mapping[str, int],
    name: str,
    source: str,
    things: str = "samples",
) -> None:
    """Hold the parts of a data set to their published sizes.

    Args:
        found, published: How many ``things`` each part has (a split, a domain, a class).
        source: Who printed the published numbers.

    Raises:
        DataError: For the first part that has another size.
    """
    for group in dict.fromkeys([*published, *sizes]):
        here, there = sizes.get(group, 0), published.get(group, 0)
        if here != there:
            raise DataError(
                f"{name}: {group} has {here:,} {things}, expected {there:,} ({source}); fetch the"
                " files again, or say `complete: false` if they are meant to be a subset"
            )


def clients_with_min_samples(sizes: Mapping[str, int], least: int, name: str) -> list[str]:
    """Who has at least ``least`` samples.

    Args:
        sizes: The samples of each client of the data set's own.
        least: The data set's key ``min_samples``.

    Returns:
        The clients, sorted.

    Raises:
        DataError: If nobody has as many.
    """
    kept = sorted(client for client, size in sizes.items() if size >= least)
    if not kept:
        most = max(sizes.values(), default=0)
        raise DataError(
            f"{name}: min_samples is {least}. Allowed: at most {most}, the most there are"
        )
    return kept


def check_missing(file: Path, missing: Iterable[object]) -> None:
    """Raise a `DataError` that names the first of what is missing in a file, if anything is."""
    names = [str(name) for name in missing]
    if names:
        more = f" and {len(names) - 1} others" if len(names) > 1 else ""
        raise DataError(f"{file}: lacks {names[0]}{more}; delete the file to fetch it again")


def check_whole_numbers(values: Any, low: int, high: int, name: str, key: str) -> np.ndarray:
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
