"""The main table of a study with what its methods cost, as notebooks show it."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from fl.base.units import duration, size
from fl.report.cells import NOTHING, Cell, Column, Row, Table
from fl.report.facts import Facts
from fl.report.method_tables import main_table
from fl.report.summaries import stored_runs

COSTS = (Column("time of\na run"), Column("bytes of a client\nand round"))


def overview(facts: Facts) -> Table:
    """Return the main table, over draws if there are several, with columns of costs."""
    facts = facts.drawn or facts
    table, cost_cells = main_table(facts), _cost_cells(facts)
    # Rows of references come after those of methods, and cost nothing.
    nothing = (Cell(""), Cell(""))
    cells = [*(cost_cells.get(method, nothing) for method in facts.methods)]
    cells += [nothing] * (len(table.rows) - len(cells))
    rows = tuple(_extended(row, added) for row, added in zip(table.rows, cells, strict=True))
    note = "Costs are means over all runs of a method; bytes are down and up."
    heads = (*table.columns, *COSTS)
    return replace(
        table, columns=heads, rows=rows, note=f"{table.note} {note}".lstrip(), crossed=""
    )


def _extended(row: Row, added: tuple[Cell, ...]) -> Row:
    """Return a row with more cells, without links, which lead to parts of a page."""
    return replace(row, cells=(*(replace(cell, link="") for cell in row.cells), *added))


def _cost_cells(facts: Facts) -> dict[str, tuple[Cell, Cell]]:
    """Return the cells of `COSTS` by method."""
    runs = stored_runs(facts.runs)
    sent = runs["bytes_down"].astype("float64") + runs["bytes_up"].astype("float64")
    mean_costs = runs.assign(sent=sent).groupby("method")[["seconds", "sent"]].mean()
    return {
        str(method): (
            Cell(NOTHING if pd.isna(row["seconds"]) else duration(row["seconds"])),
            Cell(NOTHING if pd.isna(row["sent"]) else size(row["sent"])),
        )
        for method, row in mean_costs.iterrows()
    }
