"""What all commands share: their groups, to which extras can add, safe printing, and fast imports.

Every printed line is one line without control characters. Runs, archives and data sets may come
from other people, with names, states and errors in them. Control characters could move a terminal's
cursor, hide text or reverse it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from fl.base.seams import Seam

DAILY, LOOK_UP, YOUR_OWN = "Every day", "Look things up", "Your own"
PUBLISH, SNAKEMAKE = "Keep and publish", "Called by Snakemake"

GROUPS = (DAILY, LOOK_UP, YOUR_OWN, PUBLISH, SNAKEMAKE)
"""Groups of commands, in the order of ``--help``."""


class Commands:
    """Commands of a parser, which ``--help`` lists in groups."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        """Begin without commands.

        Args:
            parser: The program's parser.
        """
        # `help_lines` lists the commands, so argparse's own list is left out.
        self._parsers = parser.add_subparsers(
            prog=parser.prog, metavar="COMMAND", required=True, help=argparse.SUPPRESS
        )
        self._lines: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}

    def add(
        self, group: str, name: str, run: Callable[[argparse.Namespace], Any], help: str
    ) -> argparse.ArgumentParser:
        """Add a command with the option ``--config``.

        Args:
            group: Group in ``--help``.
            name: Name of the command.
            run: Function that runs it; its result is the exit status, None is 0.
            help: What the command does, an imperative without a period.

        Returns:
            The parser of the command's arguments.
        """
        parser = self.add_parser(group, name, help)
        parser.set_defaults(run=run)
        parser.add_argument(
            "--config", type=Path, default=Path("config"), help="config folder (default: config)"
        )
        return parser

    def add_parser(self, group: str, name: str, help: str) -> argparse.ArgumentParser:
        """Add a command without options; see `add`."""
        self._lines[group].append((name, help))
        parser: argparse.ArgumentParser = self._parsers.add_parser(
            name, description=f"{help[0].upper()}{help[1:]}."
        )
        return parser

    def help_lines(self) -> Iterator[str]:
        """Return the lines of ``--help`` about all commands."""
        width = max(len(name) for lines in self._lines.values() for name, _ in lines)
        for group, lines in self._lines.items():
            yield f"{group}:"
            yield from (f"  {name:{width}}  {help}" for name, help in lines)
            yield ""
        yield "fedloom COMMAND --help explains a command and its options."


COMMANDS = Seam[Callable[[Commands], None]]("commands")
"""Functions that add commands of extras."""


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


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Import large modules in this context: without garbage collection.

    These imports make some hundred thousand objects, which stay until the process ends. The garbage
    collector would scan all of them several times, and once more during training, where it takes as
    long as tens of steps of a small model. Objects that exist at the end of the context are never
    scanned.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
