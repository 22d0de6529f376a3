"""What is printed: one line for one line, whatever is in it.

Runs, archives and data sets come from others, and so do the names, states and errors in them. A
terminal obeys what it is sent: characters that move its cursor, hide text or turn it round.
"""

from __future__ import annotations

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
    """Print a line, `plain`; None is standard output."""
    print(plain(text), file=file)
