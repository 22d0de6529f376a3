"""Tables of pages that are written by hand: ``python -m tools.pages docs/results/fedsac.md``.

A page says between two marks, each on a line of its own, which table stands there:

    <!-- fedloom show fedsac-digits --table paired -->
    <!-- end -->

What is between them is written anew from the runs that are there, by that command.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from fl.base.errors import DataError
from fl.base.files import write_bytes

MARKS = re.compile(r"^(<!-- fedloom (.+?) -->)\n.*?^(<!-- end -->)$", re.M | re.S)


def filled(text: str, config: Path) -> str:
    """A page with what its commands print between its marks.

    Raises:
        DataError: If a command fails; it has said why. If nothing stands between marks.
    """
    if not MARKS.search(text):
        raise DataError("no mark of a table", advice="<!-- fedloom show STUDY --table paired -->")

    def block(mark: re.Match[str]) -> str:
        return f"{mark[1]}\n{_printed(mark[2], config)}{mark[3]}"

    return MARKS.sub(block, text)


def _printed(command: str, config: Path) -> str:
    from fl.cli.main import main

    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        if main([*shlex.split(command), "--config", str(config)]):
            raise DataError(f"`fedloom {command}` failed")
    return shown.getvalue()


def write(arguments: Sequence[str] | None = None) -> None:
    """Write the pages that are named."""
    parser = argparse.ArgumentParser(prog="python -m tools.pages", description=write.__doc__)
    parser.add_argument("pages", metavar="PAGE", nargs="+", type=Path)
    parser.add_argument("--config", type=Path, default=Path("config"))
    parsed = parser.parse_args(arguments)
    for page in parsed.pages:
        try:
            write_bytes(page, filled(page.read_text("utf-8"), parsed.config).encode())
        except DataError as error:
            sys.exit(f"error: {page}: {error}")


if __name__ == "__main__":
    write()
