"""Safe printing: one line stays one line, whatever is in it.

Runs, archives and data sets may come from others, and so may the names, states and errors in them.
A terminal obeys control characters that move its cursor, hide text or reverse it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TextIO


def plain(text: object) -> str:
    """``text`` with what is not to be seen in it as Python writes it: ``\\x1b``, ``\\u202e``."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown
    )


def say(text: object, file: TextIO | None = None) -> None:
    """Print a line, made `plain`; None is standard output."""
    print(plain(text), file=file)


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A line for each row, with columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:{n}}" for cell, n in zip(row, widths, strict=True)).rstrip()
