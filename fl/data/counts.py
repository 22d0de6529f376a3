"""What was read, held to what is published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

from fl.errors import DataError


def hold(
    found: Mapping[str, int],
    published: Mapping[str, int],
    name: str,
    source: str,
    things: str = "samples",
) -> None:
    """Raise a `DataError` for the first part of a data set that is not of its published size.

    ``found`` and ``published`` count ``things`` by part (a split, a domain, a class); ``source``
    says who printed the published ones.
    """
    for part in dict.fromkeys([*published, *found]):
        here, there = found.get(part, 0), published.get(part, 0)
        if here != there:
            raise DataError(
                f"{name}: {part} has {here:,} {things}, expected {there:,} ({source}); fetch the"
                " files again, or say `complete: false` if they are meant to be a subset"
            )


def enough(sizes: Mapping[str, int], least: int, name: str) -> list[str]:
    """Who has at least ``least`` samples, sorted; `DataError` if nobody has.

    ``sizes`` counts the samples of each client of the data set's own; ``least`` is its key
    ``min_samples``.
    """
    kept = sorted(client for client, size in sizes.items() if size >= least)
    if not kept:
        most = max(sizes.values(), default=0)
        raise DataError(
            f"{name}: min_samples is {least}; allowed: at most {most}, the most there are"
        )
    return kept


def lacking(file: Path, missing: Iterable[str]) -> None:
    """Raise a `DataError` that names the first few of what is missing in a file, if anything is."""
    if named := list(islice(missing, 5)):
        raise DataError(f"{file}: lacks {', '.join(named)}; delete the file to fetch it again")
