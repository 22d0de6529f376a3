"""What was read, held to what is published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from fl.base.errors import DataError


def hold(
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


def enough(sizes: Mapping[str, int], least: int, name: str) -> list[str]:
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


def lacking(file: Path, missing: Iterable[object]) -> None:
    """Raise a `DataError` that names the first of what is missing in a file, if anything is."""
    names = [str(name) for name in missing]
    if names:
        more = f" and {len(names) - 1} others" if len(names) > 1 else ""
        raise DataError(f"{file}: lacks {names[0]}{more}; delete the file to fetch it again")
