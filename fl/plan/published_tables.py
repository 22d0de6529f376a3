"""Published numbers: ``config/published/<source>.csv``, one cell of a table in a line.

A whole file is checked before a cell of it is read, because a value that is no number, or a cell
that occurs twice, would put a wrong number beside ours.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fl.base.errors import ConfigError, Location, unknown_name
from fl.base.fields import Count, Positive
from fl.base.files import is_file

HEADS = ("table", "row", "column", "value", "sd", "note")
"""Columns of a file; a file may have others."""
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class PublishedCell:
    """A cell of a published table.

    Attributes:
        table: Name of the table.
        row: Name of the row.
        column: Name of the column.
        value: The number.
        sd: Its standard deviation, if it is published.
        note: A remark.
    """

    table: str
    row: str
    column: str
    value: float
    sd: float | None
    note: str


PublishedTable = dict[tuple[str, str], PublishedCell]
"""The cells of a table by row and column."""


@dataclass(frozen=True)
class Cells:
    """Published numbers to compare a study with: cells of one table in ``published/``.

    Attributes:
        source: Name of the file.
        table: Name of the table in that file.
        rows: Row of the table for each method entry of the study.
        columns: Column of the table for each data set or partition, as the report writes these; or
            a column for each domain, to compare with means over the clients of that domain.
        model: The model whose runs are compared, where a study has several models.
        metric: The metric to compare, by default the study's: another metric of the task; a column
            of the runs table on time, bytes or operations (``bytes_up``); a column of an analysis
            of the study (``features.nmi``); ``rounds to ENTRY``: the first round with the final
            value of that entry; ``speedup to ENTRY``: that entry's rounds divided by these.
        unit: Amount of the metric for a published 1: 4000 bytes for a thousand 32-bit numbers.
        round: The recorded round to compare, instead of the one that counts.
        modality: The modality over whose clients the mean is taken; by default over all clients.
        unseen: Whether the mean is over clients that are held out of training.
    """

    source: str
    table: str
    rows: dict[str, str]
    columns: dict[str, str | dict[str, str]]
    model: str | None = None
    metric: str | None = None
    unit: Positive = 1.0
    round: Count | None = None
    modality: str | None = None
    unseen: bool = False


@dataclass(frozen=True)
class Best:
    """Published hyper-parameters, one column of one table in ``published/``.

    Attributes:
        source: Name of the file.
        table: Name of the table in that file.
        column: Column of the table.
        rows: Row of the table by entry and key. Keys of terms and alterations are ``<name>.<key>``.
    """

    source: str
    table: str
    column: str
    rows: dict[str, dict[str, str]]


def read_table(folder: Path, source: str, name: str, location: Location) -> PublishedTable:
    """Return the cells of one table of a source.

    Args:
        folder: The config folder.
        source: Name of the file in ``published/``.
        name: Name of the table.
        location: Location of the keys that name both.

    Raises:
        ConfigError: If there is no such file or table, or for a line of the file that is wrong.
    """
    path = folder / "published" / source
    if not is_file(path):
        names = (file.name for file in path.parent.glob("*.csv"))
        raise unknown_name(location / "source", "file", source, names)
    cells = _read_cells(path)
    tables = dict.fromkeys(cell.table for cell in cells)
    if name not in tables:
        raise unknown_name(location / "table", "table", name, tables)
    return {(cell.row, cell.column): cell for cell in cells if cell.table == name}


def find_cell(cells: PublishedTable, row: str, column: str, location: Location) -> PublishedCell:
    """Return a cell of a table; raise `ConfigError` if there is none."""
    if (row, column) not in cells:
        raise unknown_name(location, "cell", f"{row} / {column}", (f"{r} / {c}" for r, c in cells))
    return cells[row, column]


def _read_cells(path: Path) -> list[PublishedCell]:
    """Return every cell of a file."""
    location = Location(os.path.relpath(path))
    cells: list[PublishedCell] = []
    line_numbers: dict[tuple[str, str, str], int] = {}
    for number, line in _read_lines(path, location):
        line_location = location / f"line {number}"
        key = (line["table"], line["row"], line["column"])
        if not all(text and text.strip() == text for text in key):
            raise ConfigError(line_location, f"is {', '.join(key)!r}", "a table, a row, a column")
        if key in line_numbers:
            problem = f"the cell {' / '.join(key)} is a duplicate of line {line_numbers[key]}"
            raise ConfigError(line_location, problem, advice="each cell once")
        line_numbers[key] = number
        value = _read_number(line["value"], "value", line_location)
        sd = _read_number(line["sd"], "sd", line_location) if line["sd"] else None
        cells.append(PublishedCell(*key, value, sd, line["note"]))
    return cells


def _read_lines(path: Path, location: Location) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield the lines after the first, each with its number and its fields by `HEADS`."""
    try:
        # Spreadsheets begin a file with a mark that is no part of the first column's name.
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            heads = next(reader, [])
            if any(heads.count(head) != 1 for head in HEADS):
                problem = f"the first line is {','.join(heads)[:100]!r}"
                raise ConfigError(location, problem, ",".join(HEADS))
            for line in filter(None, reader):
                if len(line) != len(heads):
                    problem, allowed = f"has {len(line)} fields", f"{len(heads)}, as the first line"
                    raise ConfigError(location / f"line {reader.line_num}", problem, allowed)
                yield reader.line_num, dict(zip(heads, line, strict=True))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(location, f"cannot be read: {error}", "a file in UTF-8") from None
    except csv.Error as error:
        raise ConfigError(location / f"line {reader.line_num}", f"is no CSV: {error}") from None


def _read_number(text: str, column: str, location: Location) -> float:
    location = location / column
    if not NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise ConfigError(location, f"is {text[:40]!r}", "a finite number: 71.2, 1e-3")
    if column == "sd" and float(text) < 0:
        raise ConfigError(location, f"is {text[:40]!r}", "a number >= 0, or nothing")
    return float(text)
