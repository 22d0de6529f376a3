"""Safe printing: every printed line is one line without control characters.

Runs, archives and data sets may come from other people, with names, states and errors in them.
Control characters could move a terminal's cursor, hide text or reverse it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TextIO


def printable(text: object) -> str:
    r"""Return a text with escapes for characters that are not visible: ``\x1b``, ``\u202e``."""
    line = str(text)
    if line.isprintable():
        return line
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line
    )


def say(text: object, file: TextIO | None = None) -> None:
    """Print a line, made `printable`; None is standard output."""
    print(printable(text), file=file)


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Return a line for each row, with columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:{n}}" for cell, n in zip(row, widths, strict=True)).rstrip()
