"""Checks of what is read from raw files: sizes, missing files, whole numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fl.base.errors import DataError, wrap_read_errors

Name = TypeVar("Name", str, int)


def check_sizes(
    actual: Mapping[str, int],
    published: Mapping[str, int],
    name: str,
    source: str,
    unit: str = "samples",
) -> None:
    """Raise a `DataError` unless the groups of a data set have their published sizes.

    Args:
        actual: Size of each group that was read, such as a split, a domain or a class.
        published: Published size of each group.
        name: The file or data set.
        source: The publication of the sizes.
        unit: Name of what is counted.

    Raises:
        DataError: For the first group whose size differs.
    """
    for group in dict.fromkeys([*published, *actual]):
        size, expected = actual.get(group, 0), published.get(group, 0)
        if size != expected:
            raise DataError(
                f"{name}: {group} has {size:,} {unit}, expected {expected:,} ({source})",
                advice="fetch the files again, or write `complete: false` if they are a subset",
            )


def clients_with_min_samples(sizes: Mapping[Name, int], minimum: int, name: str) -> list[Name]:
    """Return the natural clients with at least ``minimum`` samples, sorted by name or number.

    Args:
        sizes: Number of samples of each natural client.
        minimum: Value of the data set's key ``min_samples``.
        name: The file, for errors.

    Raises:
        DataError: If no client has as many samples.
    """
    clients = sorted(client for client, size in sizes.items() if size >= minimum)
    if not clients:
        largest = max(sizes.values(), default=0)
        raise DataError(
            f"{name}: min_samples is {minimum}",
            f"at most {largest}, the size of the largest client",
        )
    return clients


def check_missing(file: Path, missing: Iterable[object]) -> None:
    """Raise a `DataError` that names the first missing item of a file, if any."""
    names = [str(name) for name in missing]
    if names:
        others_text = f" and {len(names) - 1} others" if len(names) > 1 else ""
        advice = "delete the file to fetch it again"
        raise DataError(f"{file}: lacks {names[0]}{others_text}", advice=advice)


def check_whole_numbers(values: Any, low: int, high: int, name: str, key: str) -> np.ndarray:
    """Return ``values`` as an array of whole numbers from ``low`` to ``high``.

    Whole numbers of another type (``3.0``) are accepted. An array of whole numbers keeps its type;
    everything else becomes int64.

    Args:
        values: A list or an array.
        low: The smallest allowed number.
        high: The largest allowed number.
        name: The file, for errors.
        key: The key in it, for errors.

    Raises:
        DataError: For the first other value; it names its index.
    """
    location, allowed = f"{name}: {key}", f"whole numbers from {low} to {high}"
    with wrap_read_errors(location, "is no list of numbers"):
        array = np.asarray(values)
    if array.dtype.kind not in "iuf":
        raise DataError(f"{location} is an array of {array.dtype}", allowed)
    # Bytes of pixels need no check, and there are many of them.
    if array.dtype == np.uint8 and low <= 0 and high >= 255:
        return array
    fits = (array >= low) & (array <= high)
    if array.dtype.kind == "f":
        fits &= array == np.floor(array)
    if not fits.all():
        index = np.unravel_index(int(np.argmin(fits)), array.shape)
        position = ", ".join(str(int(n)) for n in index)
        raise DataError(f"{location}[{position}] is {array[index]}", allowed)
    return array if array is values and array.dtype.kind in "iu" else array.astype(np.int64)
