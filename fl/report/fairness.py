"""The table of other means than the plain one: weighted by samples, and over the worst clients."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fl.report.cells import Cell, Table, number, spread, unit
from fl.report.content import by_setting, grouped
from fl.report.facts import Facts


def means_table(facts: Facts) -> Table:
    """The plain mean beside that weighted by samples and that of the worst tenth of clients."""
    metric = facts.metric

    def cells(row: pd.Series, link: str) -> Sequence[Cell]:
        return (
            Cell(spread(row["mean"], row["sd_seeds"], metric), link),
            Cell(spread(row["weighted"], row["weighted_sd_seeds"], metric), link),
            Cell(number(row["worst_tenth"], metric), link),
        )

    caption = (
        f"Final test {unit(metric)} in other means: over clients; over clients weighted by their "
        "test samples, which is that of all samples together; over the worst tenth of the "
        "clients (at least one), each by its mean over seeds. ± standard deviation over seeds."
    )
    columns = ("mean over\nclients", "weighted\nby samples", "worst 10 %\nof clients")
    return by_setting(facts, "means", caption, columns, grouped(facts, facts.summary, cells))
