"""The table of published numbers beside measured ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fl.base.schema import SETTING
from fl.report.cells import NOTHING, Cell, Row, Table, columns, number, spread, unit
from fl.report.facts import Facts
from fl.report.summaries import gaps


def published_table(facts: Facts) -> Table | None:
    """Measured beside published; a published value above one is taken to be in percent."""
    rows = []
    for published in facts.plan.get("published") or []:
        # It may name its data set, its partition, or (as its setting) either.
        named = {published[key] for key in (*SETTING[:2], "setting") if published.get(key)}
        kind = published.get("modality")
        summary = facts.unseen_summary if published.get("unseen") else facts.summary
        summary = summary if kind is None else facts.summary_of(kind["number"])
        measured = [
            row
            for row in summary[summary["method"] == published["method"]].to_dict("records")
            if named <= {row["dataset"], row["partition"]}
        ]
        rows += [_published_row(facts, published, row) for row in measured or [None]]
    if not rows:
        return None
    caption = (
        f"Measured beside published, {unit(facts.metric)}. Measured: mean ± standard deviation "
        "over seeds, of the uniform mean over clients, or over those named beside the "
        "setting. Published: as its source gives it. "
        "Difference: measured minus published."
    )
    names = ("published in", "setting", "measured", "published", "difference", "note")
    heads = columns("Method", *names, text=("published in", "setting", "note"))
    return Table("published", caption, heads, tuple(rows), scope=facts.everywhere)


def _published_row(
    facts: Facts, published: Mapping[str, Any], row: Mapping[Any, Any] | None
) -> Row:
    metric = facts.metric
    scale = 0.01 if metric.endswith("accuracy") and abs(published["value"]) > 1 else 1
    value, sd = published["value"] * scale, published["sd"]
    source = published["source"].removesuffix(".csv")
    where = f"{source}, Table {published['table']}: {published['row']}, {published['column']}"
    keys = (*SETTING[:2], "setting")
    setting = " · ".join(published[key] for key in keys if published.get(key))
    measured, gap = Cell(NOTHING, remark="not in this study"), NOTHING
    if row is not None:
        place = (row["dataset"], row["partition"], row["model"])
        kind = published.get("modality")
        whose = "unseen" if published.get("unseen") else kind["name"] if kind else ""
        setting = facts.short(place) + (f" · {whose} clients" if whose else "")
        text = spread(row["mean"], row["sd_seeds"], metric)
        measured = Cell(text, facts.anchor(place, row["method"]), remark=gaps(row))
        gap = number(row["mean"] - value, metric, signed=True)
    cells = (
        Cell(where),
        Cell(setting),
        measured,
        Cell(spread(value, math.nan if sd is None else sd * scale, metric)),
        Cell(gap),
        Cell(str(published.get("note") or "")),
    )
    return Row(facts.methods.get(published["method"], published["method"]), cells)
