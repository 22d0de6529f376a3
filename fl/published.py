"""Published numbers: ``config/published/<source>.csv``, one line a cell."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from fl.errors import ConfigError, Where, unknown

Line = Mapping[str, str]
"""A cell: table, row, column, value, sd, note."""


def table(folder: Path, source: str, name: str, where: Where) -> dict[tuple[str, str], Line]:
    """The cells of one table of a source, by (row, column).

    Raises `ConfigError` below ``where`` if there is no such file, or no such table in it.
    """
    path = folder / "published" / source
    if not path.is_file():
        raise unknown(where / "source", "file", source, (p.name for p in path.parent.glob("*.csv")))
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    there = dict.fromkeys(line["table"] for line in lines)
    if name not in there:
        raise unknown(where / "table", "table", name, there)
    return {(line["row"], line["column"]): line for line in lines if line["table"] == name}


def cell(cells: Mapping[tuple[str, str], Line], row: str, column: str, where: Where) -> Line:
    """One cell, or a `ConfigError` at ``where``."""
    if (row, column) not in cells:
        raise unknown(where, "cell", f"{row} / {column}", (f"{r} / {c}" for r, c in cells))
    return cells[row, column]


def number(line: Line, where: Where) -> float:
    """A cell's value as a number, or a `ConfigError`."""
    try:
        return float(line["value"])
    except ValueError:
        raise ConfigError(where, f"is {line['value']!r} there", "a number") from None
