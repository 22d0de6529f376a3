"""Quantities and values in words."""

from __future__ import annotations

from typing import Any


def written(value: Any) -> str:
    """A value as a config writes it: ``true``, ``null``, ``0.1``, ``[16, 32]``, ``[a, b]``."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def counted(count: int, what: str) -> str:
    """``1 run``, ``2 runs``, ``2 studies``."""
    several = f"{what[:-1]}ies" if what.endswith("dy") else f"{what}s"
    return f"{count} {what if count == 1 else several}"


def duration(seconds: float) -> str:
    """``0.42 s``, ``95 s``, ``12 min``, ``3.4 h``, ``2.1 days``."""
    if 0 < seconds < 9.95:
        return f"{seconds:#.2g} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


def size(count: float) -> str:
    """A number of bytes: ``0 B``, ``944 B``, ``12.3 kB``, ``1.20 GB``; a kB is 1,000 bytes."""
    return _scaled(count, "B", "kMGTPE")


def operations(count: float) -> str:
    """A number of floating-point operations: ``0``, ``944``, ``12.3 k``, ``1.20 G``."""
    return _scaled(count, "", "kMGTPE").strip()


def _scaled(count: float, unit: str, prefixes: str) -> str:
    """Three digits; more only beyond the largest prefix."""
    if count < 999.5:
        return f"{count:.3g} {unit}"
    place = -1
    while count >= 999.5 and place + 1 < len(prefixes):
        count, place = count / 1000, place + 1
    digits = 2 if count < 9.995 else 1 if count < 99.95 else 0
    return f"{count:.{digits}f} {prefixes[place]}{unit}"
