"""Published tables: reading them, and the hyper-parameters that a study takes from one.

They are in ``config/published/<source>.csv``, one cell of a table in a line. A whole file is
checked before a cell of it is read, because a value that is no number, or a cell that occurs twice,
would put a wrong number beside ours.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fl.base.errors import ConfigError, ConfigProblems, Location, unknown_name
from fl.base.fields import Field
from fl.base.files import is_file
from fl.plan.config import Best, Cells, Draft

HEADS = ("table", "row", "column", "value", "sd", "note")
"""Columns of a file; a file may have others."""
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


def check_tables(folder: Path, draft: Draft, problems: ConfigProblems) -> None:
    """Collect tables that do not exist, and entries of ``best`` that the study does not have."""
    study, location = draft.study, draft.location
    cells_by_location: dict[Location, Cells | Best] = {
        location / "published" / i: cells for i, cells in enumerate(study.published)
    }
    cells_by_location |= {location / "best": study.best} if study.best else {}
    for cells_location, cells in cells_by_location.items():
        with problems.collected():
            read_table(folder, cells.source, cells.table, cells_location)
    rows_location = location / "best" / "rows"
    for label in study.best.rows if study.best and "methods" not in draft.wrong_keys else ():
        if label not in study.methods:
            problems.errors.append(
                unknown_name(rows_location / label, "entry", label, study.methods)
            )


def published_values(
    folder: Path, draft: Draft, label: str, declared_fields: Mapping[str, Field]
) -> dict[str, float] | None:
    """Return the published hyper-parameters of an entry where the study has `grid: published`.

    None stands for keys of the study that are wrong, which is told elsewhere.
    """
    best, location = draft.study.best, draft.location / "best"
    if draft.study.grid != "published":
        return {}
    if "best" in draft.wrong_keys:
        return None
    if best is None:
        raise ConfigError(location, "is missing, as grid is published", advice="set `best`")
    cells = read_table(folder, best.source, best.table, location)
    values: dict[str, float] = {}
    for key, row in best.rows.get(label, {}).items():
        row_location = location / "rows" / label / key
        if key not in declared_fields:
            raise unknown_name(row_location, "key", key, declared_fields)
        values[key] = find_cell(cells, row, best.column, row_location).value
    return values


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
