"""What stands beside a published number: means of a study's rows, runs or analyses."""

from __future__ import annotations

import pandas as pd

from fl.base.schema import COMPLETE, COSTS, PACE, SETTING, UNSEEN, rising
from fl.plan.study_plan import ComparedCell
from fl.report import over_rounds, summaries
from fl.report.facts import Facts, at
from fl.report.summaries import KEY, SCORED


def summary(facts: Facts, cell: ComparedCell) -> pd.DataFrame:
    """Return the measured values for a published cell, a row for each setting and method.

    The columns are those of `fl.report.summaries.summarise`: ``mean``, ``sd_seeds`` and the counts
    of missing runs.

    Args:
        facts: The study's facts.
        cell: As `fl.extra.published_cells` writes it.
    """
    metric = cell.get("metric") or facts.metric
    analysis, _, column = metric.partition(".")
    if metric.startswith(PACE):
        values = _pace(facts, metric)
    elif metric in COSTS:
        values = _costs(facts, metric)
    elif column:
        values = _analysed(facts, analysis, column)
    else:
        return _recorded(facts, cell, metric)
    plain = facts.summary.drop(columns=["mean", "sd_seeds"])
    return plain.merge(values[[*KEY, "mean", "sd_seeds"]], on=KEY, how="left")


def _recorded(facts: Facts, cell: ComparedCell, metric: str) -> pd.DataFrame:
    rows = facts.rows
    if cell.get("modality"):
        rows = facts.of_clients(rows, "modality", cell["modality"]["number"])
    if cell.get("domain"):
        rows = facts.of_clients(rows, "domain", cell["domain"])
    if cell.get("round"):
        rows = rows[rows["round"] == cell["round"]].drop(columns=SCORED, errors="ignore")
    return summaries.summarise(rows, facts.runs, metric, UNSEEN if cell.get("unseen") else "test")


def _costs(facts: Facts, column: str) -> pd.DataFrame:
    runs = facts.runs[facts.runs["selected"] & (facts.runs["state"] == COMPLETE)]
    grouped = runs.astype({column: "float64"}).groupby(KEY, sort=False)[column]
    return grouped.agg(mean="mean", sd_seeds="std").reset_index()


def _analysed(facts: Facts, name: str, column: str) -> pd.DataFrame:
    """A column of an analysis, of the personal stage where there is one."""
    for analysis in facts.analyses:
        if analysis.record and analysis.kind == name and column in analysis.table:
            table = analysis.table
            if "stage" in table:
                # PERSONAL comes after GLOBAL in the alphabet, too.
                table = table[table["stage"] == table.groupby(KEY)["stage"].transform("max")]
            grouped = table.groupby(KEY, sort=False)[column]
            return grouped.agg(mean="mean", sd_seeds="std").reset_index()
    return pd.DataFrame(columns=[*KEY, "mean", "sd_seeds"])


def _pace(facts: Facts, metric: str) -> pd.DataFrame:
    """Rounds until the mean over seeds is at an entry's final one; or that entry's by these."""
    kind = next(filter(metric.startswith, PACE))
    lines = over_rounds.over_seeds(facts.rows, facts.runs, facts.metric)
    records = []
    finals = facts.summary[facts.summary["method"] == metric.removeprefix(kind)]
    for setting in finals[SETTING].itertuples(index=False, name=None):
        group, goal = at(lines, setting), at(finals, setting)["mean"].max()
        sign = 1 if rising(facts.metric) else -1
        for method, line in group.groupby("method", sort=False):
            rounds = float(line.loc[sign * (line["mean"] - goal) >= -1e-12, "round"].min())
            if kind == PACE[1]:
                compared = group[group["method"] == metric.removeprefix(kind)]
                rounds = float(compared["round"].max()) / rounds
            record = dict(zip(KEY, (*setting, method), strict=True))
            records.append(record | {"mean": rounds, "sd_seeds": float("nan")})
    return pd.DataFrame(records, columns=[*KEY, "mean", "sd_seeds"])
