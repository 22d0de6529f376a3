"""What was read, held to what is published."""

from __future__ import annotations

from collections.abc import Mapping

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
