"""Results of a study in words: a line for each method and setting."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import pandas as pd

from fl.base.schema import SETTING, UNSEEN
from fl.base.units import precise_duration
from fl.report import claims_tables, clock_claims
from fl.report.cells import number, unit
from fl.report.facts import Facts
from fl.report.remarks import remarks
from fl.report.summaries import KEY, evaluated_clients, gaps

WIDTH = 100
"""Longest line of the sentences on tests."""


def results(facts: Facts) -> Iterator[str]:
    """Return lines with the summaries of a study by method and setting (over draws, if drawn).

    See `fl.report.summaries.summarise`. A line has the method's chosen point of its grid (draws
    have points of their own), its missing and diverged runs, and missing points of the grid, which
    may change the choice. Then come the report's sentences on which differences are significant,
    and its remarks. The last line counts missing and diverged runs.
    """
    study, runs, metric = facts.plan, facts.runs, facts.metric
    facts = facts.merged_draws or facts
    titles = {run.method: run.title for run in study.runs}
    points = runs[runs["selected"]].groupby(KEY)["point"].first()
    chosen = {} if facts.over_draws else points.to_dict()
    # An empty summary would take as long as a full one.
    held_out = (facts.rows["split"] == UNSEEN).any()
    unseen = facts.unseen_summary if held_out else facts.summary[:0]
    yield study.title
    samples = evaluated_clients(study).items()
    texts = (f"{titles[m]} {' or '.join(f'{n:,}' for n in counts)}" for m, counts in samples)
    if samples:
        yield f"number of evaluated clients, at most: {', '.join(texts)}"
    for summary, group in ((facts.summary, ""), (unseen, ", clients held out of training")):
        for setting, rows in summary.groupby(SETTING, sort=False):
            if rows["n_clients"].any() or not group:
                yield f"{study.setting_title(*map(str, setting))}: test {unit(metric)}{group}"
                yield from _table(rows, metric, titles, chosen, facts.replicates)
    yield from textwrap.wrap(facts.undefined_note(metric), WIDTH)
    yield from textwrap.wrap(" ".join(claims_tables.claims_made(facts)), WIDTH)
    yield from textwrap.wrap(_simulated_times(facts), WIDTH)
    for remark in remarks(facts):
        yield from textwrap.wrap(remark, WIDTH)
    counts = runs.drop_duplicates("run")["state"].value_counts()
    if set(counts.index) != {"complete"}:
        yield ", ".join(f"{count} {state}" for state, count in counts.items())
    yield from filter(None, [facts.backend_note])


def _simulated_times(facts: Facts) -> str:
    """Return the simulated time of a run of each method; empty without devices."""
    lines = facts.timed_curves
    ends = lines.groupby(["method", "run"])["seconds"].max().groupby("method").mean()
    times = [f"{t} {precise_duration(ends[m])}" for m, t in facts.methods.items() if m in ends]
    if not times:
        return ""
    return (
        f"Simulated time of a run, mean: {', '.join(times)}. The report has time and bytes to "
        f"{clock_claims.goal_text(facts)}, and what may be claimed of them: Over simulated time."
    )


def _table(
    rows: pd.DataFrame, metric: str, titles: dict[str, str], chosen: dict[Any, str], replicates: str
) -> Iterator[str]:
    width = max(20, *(len(titles[method]) for method in rows["method"]))
    deviation = f"sd over {replicates}"
    yield f"  {'method':{width}} {'mean':>6} {deviation:>14} {'worst client':>13}  {replicates}"
    for row in rows.to_dict("records"):
        mean, spread, worst = (number(row[key], metric) for key in ("mean", "sd_seeds", "worst"))
        line = f"  {titles[row['method']]:{width}} {mean:>6} {spread:>14} {worst:>13}"
        notes = [chosen.get((*(row[key] for key in KEY),), ""), gaps(row)]
        yield f"{line}  {row['n_seeds']:5}  {', '.join(filter(None, notes))}".rstrip()
