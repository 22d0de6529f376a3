"""Patterns of names of layers and weights, such as ``layers.0.*``."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from fl.base.errors import FedloomError


def matches(patterns: Iterable[str], names: Iterable[str], key: str, unit: str) -> list[str]:
    """Return the names that any of the patterns matches, in their order.

    Args:
        patterns: The patterns.
        names: All names.
        key: The config key of the patterns, for the error.
        unit: What a name is of, for the error.

    Raises:
        FedloomError: If a pattern matches none of the names, or if there is no pattern.
    """
    names, patterns = list(names), list(patterns)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise FedloomError(f"{key}: {pattern!r} matches no {unit}", ", ".join(names) or "none")
    if not patterns:
        raise FedloomError(f"{key}: is empty", ", ".join(names) or "none")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
