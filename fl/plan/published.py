"""Published numbers: ``config/published/<source>.csv``, one line a cell.

A whole file is checked before a cell of it is read, because a value that is no number, or a cell
that occurs twice, would put a wrong number beside ours.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from fl.base.errors import ConfigError, Location, unknown
from fl.base.files import is_file

Line = Mapping[str, str]
"""A cell: table, row, column, value, sd, note."""

COLUMNS = ("table", "row", "column", "value", "sd", "note")
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


def table(folder: Path, source: str, name: str, location: Location) -> dict[tuple[str, str], Line]:
    """The cells of one table of a source, by (row, column).

    Raises:
        ConfigError: At ``location`` if there is no such file, or no such table in it; else at the
            line of the file that is wrong.
    """
    path = folder / "published" / source
    if not is_file(path):
        raise unknown(
            location / "source", "file", source, (p.name for p in path.parent.glob("*.csv"))
        )
    cells = _cells(path)
    there = dict.fromkeys(name for name, *_ in cells)
    if name not in there:
        raise unknown(location / "table", "table", name, there)
    return {
        (row, column): line for (in_table, row, column), line in cells.items() if in_table == name
    }


def _cells(path: Path) -> dict[tuple[str, str, str], Line]:
    """Every cell of a file by table, row and column."""
    location = Location(os.path.relpath(path))
    cells: dict[tuple[str, str, str], Line] = {}
    places: dict[tuple[str, str, str], int] = {}
    for number, line in _lines(path, location):
        at = location / f"line {number}"
        key = (line["table"], line["row"], line["column"])
        if not all(text and text.strip() == text for text in key):
            raise ConfigError(at, f"is {', '.join(key)!r}", "a table, a row and a column")
        if key in cells:
            problem = f"the cell {' / '.join(key)} stands twice: line {places[key]} has it too"
            raise ConfigError(at, problem, "each cell once")
        for column in ("value", "sd"):
            if line[column] or column == "value":
                _check_number(line[column], column, at)
        cells[key], places[key] = line, number
    return cells


def _lines(path: Path, location: Location) -> Iterator[tuple[int, Line]]:
    """The lines after the head, each with its number and all of `COLUMNS`."""
    try:
        # Spreadsheets begin a file with a mark that is no part of the first column's name.
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            head = next(reader, [])
            if any(head.count(column) != 1 for column in COLUMNS):
                problem = f"the first line is {','.join(head)[:100]!r}"
                raise ConfigError(location, problem, ",".join(COLUMNS))
            for cells in filter(None, reader):
                if len(cells) != len(head):
                    at = location / f"line {reader.line_num}"
                    problem = f"has {len(cells)} fields"
                    raise ConfigError(at, problem, f"{len(head)}, as in the first line")
                yield reader.line_num, dict(zip(head, cells, strict=True))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(location, f"cannot be read: {error}", "UTF-8") from None
    except csv.Error as error:
        raise ConfigError(location / f"line {reader.line_num}", f"is no CSV: {error}") from None


def _check_number(text: str, column: str, location: Location) -> None:
    if not NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise ConfigError(location / column, f"is {text[:40]!r}", "a finite number: 71.2, 1e-3")
    if column == "sd" and float(text) < 0:
        raise ConfigError(location / column, f"is {text[:40]!r}", "a number >= 0, or nothing")


def cell(cells: Mapping[tuple[str, str], Line], row: str, column: str, location: Location) -> Line:
    """One cell, or a `ConfigError` at ``location``."""
    if (row, column) not in cells:
        raise unknown(location, "cell", f"{row} / {column}", (f"{r} / {c}" for r, c in cells))
    return cells[row, column]


def number(line: Line) -> float:
    """A cell's value."""
    return float(line["value"])
