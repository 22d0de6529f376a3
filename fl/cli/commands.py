"""Commands of the program, in groups, to which extras can add."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
            metavar="COMMAND", required=True, help=argparse.SUPPRESS
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
