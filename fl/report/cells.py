"""Tables as data, and the one place where a number becomes text.

HTML, Markdown and LaTeX are written from the same `Table`, so that a number reads the same in all
three and is the rounding of the one in the Parquet tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fl.base.schema import BY_CLASS, ERRORS, SHARES

MINUS, DASH = "\N{MINUS SIGN}", "\N{EN DASH}"
NOTHING = DASH
"""Stands where there is no number."""


@dataclass(frozen=True)
class Cell:
    """A cell: its text, its link (``#anchor``), whether it is the best, and a short remark."""

    text: str
    link: str = ""
    best: bool = False
    remark: str = ""

    @property
    def full_text(self) -> str:
        """The text, and the remark in brackets."""
        return f"{self.text} ({self.remark})" if self.remark else self.text


@dataclass(frozen=True)
class Row:
    """A row under its head: of a method, of a reference beside methods, or a heading alone."""

    head: str
    cells: tuple[Cell, ...] = ()
    kind: Literal["method", "reference", "heading"] = "method"


@dataclass(frozen=True)
class Column:
    """A column: its name, in which a line break breaks the line, and whether it holds text."""

    name: str
    text: bool = False


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: What it is called in labels and files, unlike any other table of the report.
        caption: One or two sentences of at most 40 words: what the numbers are.
        columns: The first is that of the heads of rows.
        crossed: The first column's name when rows and columns change places, for a table that can
            be read either way.
        note: What else a careful reader needs, below the table.
        is_main: Whether it is the table that readers look for, which is never folded.
        scope: What the page says once for all its tables, and a table elsewhere says itself.
        number: The table's number on the page.
    """

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    crossed: str = ""
    note: str = ""
    scope: str = ""
    is_main: bool = False
    number: str = ""

    @property
    def full_note(self) -> str:
        """The note for a reader who sees this table without the page."""
        return f"{self.note} {self.scope}".strip()


def columns(head: str, *names: str, text: Sequence[str] = ()) -> tuple[Column, ...]:
    """A column of heads and the columns after it, of which those in ``text`` hold text."""
    return (Column(head, True), *(Column(name, name in text) for name in names))


def transposed(table: Table) -> Table:
    """Exchange rows and columns of a ``crossed`` table with more than six columns and fewer rows.

    Any other table is returned unchanged.
    """
    count = len(table.columns) - 1
    if not table.crossed or count <= 6 or count <= len(table.rows):
        return table
    rows = tuple(
        Row(column.name.replace("\n", " · "), tuple(row.cells[i] for row in table.rows))
        for i, column in enumerate(table.columns[1:])
    )
    heads = columns(table.crossed, *(row.head for row in table.rows))
    return replace(table, columns=heads, rows=rows, crossed="")


def number(value: float, metric: str, signed: bool = False) -> str:
    """Return a value of ``metric`` as text.

    A share is in percent with one decimal; other values have three decimals, a number of rounds
    has one, and none from 1,000 on. An error below 0.1 has three digits that are not 0, as its unit
    may be large.
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    if metric in SHARES or metric.startswith(BY_CLASS):
        value, digits = 100 * value, 1
    else:
        digits = 0 if abs(value) >= 1000 else 1 if metric.startswith("rounds") else 3
        if metric in ERRORS and 0 < abs(value) < 0.1:
            digits = 2 - math.floor(math.log10(abs(value)))
    text = f"{value:{'+' if signed else ''},.{digits}f}"
    if round(value, digits) == 0:
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
    if metric in (*ERRORS, "r2"):
        return f"{metric.upper()}{' (unit of the target)' * (metric in ERRORS)}"
    return f"{metric.replace('_', ' ')}{' (%)' if metric in SHARES else ''}"


def probability(p: float) -> str:
    """A p-value with three decimals, ``<0.001`` below."""
    if not math.isfinite(p):
        return NOTHING
    return "<0.001" if p < 0.0005 else f"{p:.3f}"


def decimal(value: float, digits: int = 2) -> str:
    """A plain number."""
    return f"{value:.{digits}f}".replace("-", MINUS) if math.isfinite(value) else NOTHING
