"""What was read, held to what is published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

from fl.errors import DataError


def hold(found: Mapping[str, int], published: Mapping[str, int], name: str, source: str) -> None:
    """Raise a `DataError` for the first part of a data set that is not of its published size.

    ``found`` and ``published`` count samples by part (a split, a domain, a class); ``source`` says
    who printed the published ones.
    """
    for part in dict.fromkeys([*published, *found]):
        here, there = found.get(part, 0), published.get(part, 0)
        if here != there:
            raise DataError(
                f"{name}: {part} has {here:,} samples, expected {there:,} ({source}); fetch the"
                " files again, or say `complete: false` if they are meant to be a subset"
            )


def lacking(file: Path, missing: Iterable[str]) -> None:
    """Raise a `DataError` that names the first few of what is missing in a file, if anything is."""
    if named := list(islice(missing, 5)):
        raise DataError(f"{file}: lacks {', '.join(named)}; delete the file to fetch it again")
