"""The table of published numbers beside measured ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from fl.base.schema import SETTING, SHARES
from fl.plan.study_plan import ComparedCell
from fl.report.cells import NOTHING, Cell, Row, Table, columns, number, spread, unit
from fl.report.facts import Facts
from fl.report.measured import summary
from fl.report.summaries import gaps

COMPARED = ("metric", "domain", "modality", "unseen", "round")
"""The keys of a published cell that say with which mean it is compared."""


def published_table(facts: Facts) -> Table | None:
    """Measured beside published; a published value above one is taken to be in percent."""
    rows = []
    summaries: dict[str, pd.DataFrame] = {}
    for published in facts.plan.published:
        named = {*_place(published)}
        compared = str([published.get(key) for key in COMPARED])
        if compared not in summaries:
            summaries[compared] = summary(facts, published)
        frame = summaries[compared]
        measured: list[Mapping[Any, Any] | None] = [
            row
            for row in frame[frame["method"] == published["method"]].to_dict("records")
            if named <= {row[key] for key in SETTING}
        ]
        rows += [_published_row(facts, published, row) for row in measured or [None]]
    if not rows:
        return None
    caption = (
        f"Measured values beside published ones: {unit(facts.metric)}, unless the setting names "
        "another metric. Difference: measured minus published."
    )
    note = (
        "Measured: mean ± standard deviation over seeds of the uniform mean over clients, or over "
        "the clients that the setting names. Published: as its source gives it."
    )
    names = ("published in", "setting", "measured", "published", "difference", "note")
    heads = columns("Method", *names, text=("published in", "setting", "note"))
    scope = facts.everywhere
    return Table("published", caption, heads, tuple(rows), note=note, scope=scope)


def _published_row(facts: Facts, published: ComparedCell, row: Mapping[Any, Any] | None) -> Row:
    metric = published.get("metric") or facts.metric
    scale = 0.01 if metric in SHARES and abs(published["value"]) > 1 else 1
    share = published.get("unit", 1)
    value, sd = published["value"] * scale, published["sd"]
    source = published["source"].removesuffix(".csv")
    location = f"{source}, Table {published['table']}: {published['row']}, {published['column']}"
    setting = " · ".join(_place(published))
    measured, gap = Cell(NOTHING, remark="not in this study"), NOTHING
    if row is not None:
        place = (row["dataset"], row["partition"], row["model"])
        setting = " · ".join([facts.short(place), *_narrowed(published)])
        mean = row["mean"] / share
        text = spread(mean, row["sd_seeds"] / share, metric)
        measured = Cell(text, facts.anchor(place, row["method"]), remark=gaps(row))
        gap = number(mean - value, metric, signed=True)
    cells = (
        Cell(location),
        Cell(setting),
        measured,
        Cell(spread(value, math.nan if sd is None else sd * scale, metric)),
        Cell(gap),
        Cell(str(published.get("note") or "")),
    )
    return Row(facts.methods.get(published["method"], published["method"]), cells)


def _place(published: ComparedCell) -> list[str]:
    """Return the model of a cell, if it names one, and its data set or partition."""
    return [*filter(None, [published.get("model")]), published["setting"]]


def _narrowed(published: ComparedCell) -> list[str]:
    """Return the clients of a cell, if its mean is not over all clients."""
    kind = published.get("modality")
    group = "unseen" if published.get("unseen") else kind["name"] if kind else ""
    group = published.get("domain") or group
    words = [f"{group} clients"] if group else []
    words += [f"round {published['round']}"] if published.get("round") else []
    return words + [unit(name) for name in (published.get("metric"),) if name]
