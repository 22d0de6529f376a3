"""Quantities, values and objects in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def config_text(value: Any) -> str:
    """Return a value as written in a config: ``true``, ``null``, ``0.1``, ``[16, 32]``."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(config_text, value))}]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def values_text(values: Mapping[str, Any]) -> str:
    """Return values with their keys as text: ``mu=0.1, lr=0.01``; empty without any."""
    return ", ".join(f"{key}={config_text(value)}" for key, value in values.items())


def quantity(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 run``, ``2 runs``, ``2 studies``."""
    plural = f"{noun[:-1]}ies" if noun.endswith("dy") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def object_text(value: object) -> str:
    """Return a Python object in words: ``None``, ``the class Net``, ``an object of type str``."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"an object of type {type(value).__name__}"


def printable(text: object) -> str:
    r"""Return a text with escapes for characters that are not visible: ``\x1b``, ``\u202e``."""
    line = str(text)
    if line.isprintable():
        return line
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line
    )


def first_of(names: Sequence[str], noun: str) -> str:
    """Return the first name and the number of others: ``a``, ``a and 2 other runs``."""
    count = len(names) - 1
    return f"{names[0]} and {quantity(count, f'other {noun}')}" if count else names[0]


def duration(seconds: float) -> str:
    """Return a duration in words: ``0.42 s``, ``95 s``, ``12 min``, ``3.4 h``, ``2.1 days``."""
    if 0 < seconds < 9.95:
        return f"{seconds:#.2g} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


def precise_duration(seconds: float) -> str:
    """Return a duration with three digits: ``0.0421 s``, ``6.76 s``, ``131 s``, ``1.86 h``."""
    for limit, factor, unit in ((999.5, 1, "s"), (48 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{_digits(seconds / factor)} {unit}"
    return f"{_digits(seconds / 86400)} days"


def _digits(value: float) -> str:
    """Return a number with three digits, or as a whole number: ``0.278``, ``42.0``, ``1234``."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:#.3g}"


def size(count: float) -> str:
    """Return a number of bytes in words: ``944 B``, ``12.3 kB`` (1,000 bytes each), ``1.20 GB``."""
    return _scaled(count, "B", "kMGTPE")


def operations(count: float) -> str:
    """Return a number of floating-point operations in words: ``944``, ``12.3 k``, ``1.20 G``."""
    return _scaled(count, "", "kMGTPE").strip()


def _scaled(count: float, unit: str, prefixes: str) -> str:
    """Return a number with three digits and a prefix; more digits beyond the largest prefix."""
    if count < 999.5:
        return f"{count:.3g} {unit}"
    index = -1
    while count >= 999.5 and index + 1 < len(prefixes):
        count, index = count / 1000, index + 1
    digits = 2 if count < 9.995 else 1 if count < 99.95 else 0
    return f"{count:.{digits}f} {prefixes[index]}{unit}"
