"""The main table of a study with what its methods cost, as notebooks show it."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from fl.base.units import duration, size
from fl.report.cells import NOTHING, Cell, Column, Table
from fl.report.facts import Facts
from fl.report.method_tables import main_table
from fl.report.summaries import stored_runs


def overview(facts: Facts) -> Table:
    """Return the main table, over draws if there are several, with columns of costs."""
    facts = facts.drawn or facts
    table, runs = main_table(facts), stored_runs(facts.runs)
    bytes_ = runs["bytes_down"].astype("float64") + runs["bytes_up"].astype("float64")
    costs = pd.DataFrame(
        {"method": runs["method"], "seconds": runs["seconds"], "bytes": bytes_}
    ).groupby("method")[["seconds", "bytes"]]
    means = costs.mean().to_dict("index")
    texts = {
        method: tuple(
            NOTHING
            if method not in means or pd.isna(means[method][key])
            else show(means[method][key])
            for key, show in (("seconds", duration), ("bytes", size))
        )
        for method in facts.methods
    }
    n_methods = len(facts.methods)  # References come after the methods, and cost nothing.
    rows = [
        replace(
            row,
            cells=(
                *(replace(cell, link="") for cell in row.cells),
                *map(Cell, texts[method] if method else ("", "")),
            ),
        )
        for row, method in zip(
            table.rows, [*facts.methods, *[""] * (len(table.rows) - n_methods)], strict=True
        )
    ]
    heads = (*table.columns, Column("time of\na run"), Column("bytes of a client\nand round"))
    note = (
        f"{table.note} Costs are means over all runs of a method; bytes are down and up.".lstrip()
    )
    return replace(table, columns=heads, rows=tuple(rows), note=note, crossed="")
