"""Tables as data, and the one place where a number becomes text.

HTML, Markdown and LaTeX are written from the same `Table`, so that a number reads the same in all
three and is the rounding of the one in the Parquet tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fl.base.schema import SHARES

MINUS, DASH = "\N{MINUS SIGN}", "\N{EN DASH}"
NOTHING = DASH
"""Stands where there is no number."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, its link (``#anchor``), whether it is the best, a short remark,
    and the number in full, which the page shows under the pointer.
    """

    text: str
    href: str = ""
    best: bool = False
    remark: str = ""
    exact: str = ""


@dataclass(frozen=True)
class Row:
    """A row: its heading, its cells, and whether it is a reference rather than a method."""

    head: Cell
    cells: tuple[Cell, ...]
    reference: bool = False


@dataclass(frozen=True)
class Group:
    """Rows under a common heading; an empty heading is not shown."""

    heading: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Table:
    """A table; a line break in a column's name breaks the line in the header.

    Attributes:
        text: The number of columns, from the left, that hold text and not numbers.
        note: Whether the last column holds text.
        crossed: The corner's text when rows and columns change places, for a table that can be read
            either way.
        scope: What the page says once for all its tables, and a table elsewhere says itself.
        number: The table's number on the page.
    """

    name: str
    caption: str
    corner: str
    columns: tuple[str, ...]
    groups: tuple[Group, ...]
    text: int = 0
    note: bool = False
    crossed: str = ""
    scope: str = ""
    number: str = ""

    @property
    def rows(self) -> list[Row]:
        """All rows, whatever their group."""
        return [row for group in self.groups for row in group.rows]

    def holds_text(self, column: int) -> bool:
        """Whether column 1, 2, ... holds text; column 0, the heads of rows, does."""
        return column <= self.text or (self.note and column == len(self.columns))

    def transposed(self) -> Table:
        """The table with rows and columns exchanged, if it is ``crossed``."""
        rows = [
            Row(Cell(name.replace("\n", " · ")), tuple(row.cells[i] for row in self.rows))
            for i, name in enumerate(self.columns)
        ]
        heads = tuple(row.head.text for row in self.rows)
        group = Group("", tuple(rows))
        return replace(self, corner=self.crossed, columns=heads, groups=(group,), crossed="")


def number(value: float, metric: str, signed: bool = False) -> str:
    """A value of ``metric``: percent with one decimal for a share, else three decimals."""
    if value is None or not math.isfinite(value):
        return NOTHING
    value, digits = (100 * value, 1) if metric in SHARES else (value, 3)
    text = f"{value:{'+' if signed else ''}.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("+-")
    return text.replace("-", MINUS)


def spread(mean: float, sd: float, metric: str, signed: bool = False) -> str:
    """Mean and standard deviation, ``93.4 ± 0.5``; the mean alone where there is no deviation."""
    text = number(mean, metric, signed)
    if text == NOTHING or sd is None or not math.isfinite(sd):
        return text
    return f"{text} ± {number(sd, metric)}"


def unit(metric: str) -> str:
    """A metric's name with its unit, as an axis or a caption says it."""
    return f"{metric.replace('_', ' ')}{' (%)' if metric in SHARES else ''}"


def probability(p: float) -> str:
    """A p-value with three decimals, ``<0.001`` below."""
    if not math.isfinite(p):
        return NOTHING
    return "<0.001" if p < 0.0005 else f"{p:.3f}"


def decimal(value: float, digits: int = 2) -> str:
    """A plain number."""
    return f"{value:.{digits}f}".replace("-", MINUS) if math.isfinite(value) else NOTHING


def mark_best(rows: list[Row], means: list[list[float]], metric: str, up: bool) -> list[Row]:
    """The rows with the best cell of every column marked; cells that read the same are equal."""
    if len(rows) < 2:
        return rows
    marked = [list(row.cells) for row in rows]
    for column in range(len(means[0])):
        values = [m[column] for m in means]
        known = [v for v in values if math.isfinite(v)]
        if not known:
            continue
        best = number(max(known) if up else min(known), metric)
        for r, value in enumerate(values):
            if number(value, metric) == best:
                marked[r][column] = replace(marked[r][column], best=True)
    return [replace(row, cells=tuple(c)) for row, c in zip(rows, marked, strict=True)]
