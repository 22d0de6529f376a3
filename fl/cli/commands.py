"""Code of all commands: safe printing, the option ``--config``, and fast imports.

Every printed line is one line without control characters. Runs, archives and data sets may come
from other people, with names, states and errors in them. Control characters could move a terminal's
cursor, hide text or reverse it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from fl.base.errors import FedloomWarning
from fl.base.units import printable

if TYPE_CHECKING:
    from fl.report.cells import Table


def add_config_option(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--config`` to a command."""
    parser.add_argument(
        "--config", type=Path, default=Path("config"), help="config folder (default: config)"
    )


def add_words(parser: argparse.ArgumentParser, studies: str) -> None:
    """Add the studies of a command, and overrides of their keys (`fl.plan.overrides`).

    Args:
        parser: The parser of the command.
        studies: What is named, and what is the default.
    """
    help = f"{studies}; KEY=VALUE sets a key for this call, such as lr=0.1 or 'seeds=[0, 1]'"
    parser.add_argument("words", nargs="*", metavar="STUDY | KEY=VALUE", help=help)


def say(text: object, file: TextIO | None = None) -> None:
    """Print a line, made `printable`; None is standard output."""
    print(printable(text), file=file)


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Return a line for each row, with columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:{n}}" for cell, n in zip(row, widths, strict=True)).rstrip()


def table_lines(table: Table) -> Iterator[str]:
    """Yield the lines of a table of a report: a blank one, the caption, heads and rows."""
    heads = [column.name.replace("\n", " ") for column in table.columns]
    rows = [[row.head, *(cell.text for cell in row.cells)] for row in table.rows]
    yield from ("", table.caption, *aligned([heads, *rows]))


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


@contextlib.contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print a `FedloomWarning` as a line on stderr, without a line of code, which says nothing."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_line(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, FedloomWarning):
                say(f"warning: {message}", file=sys.stderr)
            else:
                show(message, category, filename, lineno, file, line)

        warnings.showwarning = show_line
        yield
