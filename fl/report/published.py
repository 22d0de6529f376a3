"""Published numbers beside measured ones: means of a study's rows, runs or analyses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from fl.base.schema import COMPLETE, COSTS, PACE, SETTING, SHARES, UNSEEN, rising
from fl.plan.study_plan import ComparedCell
from fl.report import summaries
from fl.report.cells import NOTHING, Cell, Row, Table, columns, number, spread, unit
from fl.report.facts import Facts, rows_of_setting
from fl.report.summaries import KEY, SCORED, gaps

COMPARED = ("metric", "domain", "modality", "unseen", "round")
"""Keys of a published cell that choose the mean with which it is compared."""


def published_table(facts: Facts) -> Table | None:
    """Return the table of measured values beside published ones; shares above 1 are in percent."""
    rows = []
    frames: dict[str, pd.DataFrame] = {}
    for published in facts.plan.published:
        named = {*_place(published)}
        compared = str([published.get(key) for key in COMPARED])
        if compared not in frames:
            frames[compared] = measured_summary(facts, published)
        frame = frames[compared]
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
    scope = facts.common_note
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
        setting = " · ".join([facts.short_name(place), *_narrowed(published)])
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
    group = "unseen" if published.get("unseen") else published.get("modality", "")
    group = published.get("domain") or group
    words = [f"{group} clients"] if group else []
    words += [f"round {published['round']}"] if published.get("round") else []
    return words + [unit(name) for name in (published.get("metric"),) if name]


def measured_summary(facts: Facts, cell: ComparedCell) -> pd.DataFrame:
    """Return the measured values for a published cell, a row for each setting and method.

    The columns are those of `fl.report.summaries.summarise`: ``mean``, ``sd_seeds`` and the counts
    of missing runs.

    Args:
        facts: The study's facts.
        cell: The published cell, see `fl.plan.published_cells`.
    """
    metric = cell.get("metric") or facts.metric
    analysis, _, column = metric.partition(".")
    if metric.startswith(PACE):
        values = _measured_pace(facts, metric)
    elif metric in COSTS:
        values = _measured_costs(facts, metric)
    elif column:
        values = _analysed(facts, analysis, column)
    else:
        return _recorded(facts, cell, metric)
    plain = facts.summary.drop(columns=["mean", "sd_seeds"])
    return plain.merge(values[[*KEY, "mean", "sd_seeds"]], on=KEY, how="left")


def _recorded(facts: Facts, cell: ComparedCell, metric: str) -> pd.DataFrame:
    rows = facts.rows
    if cell.get("modality"):
        rows = facts.of_clients(rows, "modality", cell["modality_number"])
    if cell.get("domain"):
        rows = facts.of_clients(rows, "domain", cell["domain"])
    if cell.get("round"):
        rows = rows[rows["round"] == cell["round"]].drop(columns=SCORED, errors="ignore")
    return summaries.summarise(rows, facts.runs, metric, UNSEEN if cell.get("unseen") else "test")


def _measured_costs(facts: Facts, column: str) -> pd.DataFrame:
    runs = facts.runs[facts.runs["selected"] & (facts.runs["state"] == COMPLETE)]
    grouped = runs.astype({column: "float64"}).groupby(KEY, sort=False)[column]
    return grouped.agg(mean="mean", sd_seeds="std").reset_index()


def _analysed(facts: Facts, name: str, column: str) -> pd.DataFrame:
    """Return means of a column of an analysis, of the personal stage if there is one."""
    for analysis in facts.analyses:
        if analysis.record and analysis.kind == name and column in analysis.table:
            table = analysis.table
            if "stage" in table:
                # PERSONAL comes after GLOBAL in the alphabet, too.
                table = table[table["stage"] == table.groupby(KEY)["stage"].transform("max")]
            grouped = table.groupby(KEY, sort=False)[column]
            return grouped.agg(mean="mean", sd_seeds="std").reset_index()
    return pd.DataFrame(columns=[*KEY, "mean", "sd_seeds"])


def _measured_pace(facts: Facts, metric: str) -> pd.DataFrame:
    """Return rounds until the mean reaches an entry's final one, or the entry's rounds by these."""
    kind = next(filter(metric.startswith, PACE))
    lines = summaries.mean_curves(facts.rows, facts.runs, facts.metric)
    records = []
    finals = facts.summary[facts.summary["method"] == metric.removeprefix(kind)]
    for setting in finals[SETTING].itertuples(index=False, name=None):
        group, goal = (
            rows_of_setting(lines, setting),
            rows_of_setting(finals, setting)["mean"].max(),
        )
        sign = 1 if rising(facts.metric) else -1
        for method, line in group.groupby("method", sort=False):
            rounds = float(line.loc[sign * (line["mean"] - goal) >= -1e-12, "round"].min())
            if kind == PACE[1]:
                compared = group[group["method"] == metric.removeprefix(kind)]
                rounds = float(compared["round"].max()) / rounds
            record = dict(zip(KEY, (*setting, method), strict=True))
            records.append(record | {"mean": rounds, "sd_seeds": float("nan")})
    return pd.DataFrame(records, columns=[*KEY, "mean", "sd_seeds"])
