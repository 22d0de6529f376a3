"""Tables as data, and the conversion of numbers to text.

HTML, Markdown and LaTeX are written from the same `Table`, so that a number has the same digits in
all of them: those of the number in the Parquet tables, rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fl.base.schema import BY_CLASS, ERRORS, SHARES

MINUS, DASH = "\N{MINUS SIGN}", "\N{EN DASH}"
NOTHING = DASH
"""Text in place of a number that does not exist."""


@dataclass(frozen=True)
class Cell:
    """Cell: its text, its link (``#anchor``), whether it is the best, and a short remark."""

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
    """Row with a head: of a method, of a reference beside methods, or a heading without cells."""

    head: str
    cells: tuple[Cell, ...] = ()
    kind: Literal["method", "reference", "heading"] = "method"


@dataclass(frozen=True)
class Column:
    """Column: its name, which can have several lines, and whether it holds text."""

    name: str
    text: bool = False


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: Name in labels and files, unique in the report.
        caption: One or two sentences of at most 40 words that say what the numbers are.
        columns: The columns; the first one is that of the heads of rows.
        rows: The rows.
        crossed: Name of the first column after rows and columns are exchanged; empty if they may
            not be.
        note: Details, below the table.
        scope: Note that the page has once for all its tables, and a table elsewhere has itself.
        is_main: Whether it is the main table, which is never folded.
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
    """Return the column of heads and the columns after it; those in ``text`` hold text."""
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
    """Return mean and standard deviation, ``93.4 ± 0.5``; the mean alone without a deviation."""
    text = number(mean, metric, signed)
    if text == NOTHING or sd is None or not math.isfinite(sd):
        return text
    return f"{text} ± {number(sd, metric)}"


def unit(metric: str) -> str:
    """Return a metric's name with its unit, for axes and captions."""
    if metric in (*ERRORS, "r2"):
        return f"{metric.upper()}{' (unit of the target)' * (metric in ERRORS)}"
    return f"{metric.replace('_', ' ')}{' (%)' if metric in SHARES else ''}"


def probability(p: float) -> str:
    """Return a p-value with three decimals, or ``<0.001``."""
    if not math.isfinite(p):
        return NOTHING
    return "<0.001" if p < 0.0005 else f"{p:.3f}"


def multiple(share: float) -> str:
    """Return a multiple as text, with two digits below 10."""
    if not math.isfinite(share):
        return NOTHING
    return f"{share:.2g}" if 0 < share < 10 else f"{share:,.0f}"


def decimal(value: float, digits: int = 2) -> str:
    """Return a number with some decimals."""
    return f"{value:.{digits}f}".replace("-", MINUS) if math.isfinite(value) else NOTHING
