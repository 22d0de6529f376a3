"""Mean ranks of methods over settings, and the methods that a crowded figure shows in colour."""

from __future__ import annotations

import pandas as pd

from fl.base.plotting import N_COLOURS
from fl.base.schema import SETTING, rising
from fl.report.facts import Facts
from fl.report.figures import Series

N_BEST = 5
"""Number of the best methods that a figure of more than `N_COLOURS` methods shows in colour."""


def mean_ranks(facts: Facts) -> pd.Series:
    """Return the mean rank over settings by method, 1 for the best; equal values share a rank.

    A method that lacks a value in some setting has none. Empty for fewer than two settings or three
    methods, whose order a reader sees.
    """
    frame = facts.summary
    table = frame.pivot_table("mean", SETTING, "method", dropna=False, observed=True)
    table = table.reindex(columns=[*facts.methods])
    if len(table) < 2 or table.shape[1] < 3:
        return pd.Series(dtype="float64")
    ranks = table.rank(axis=1, ascending=not rising(facts.metric))
    return ranks.mean(skipna=False)


def series_of(facts: Facts) -> Series:
    """Return the methods of a report as its figures draw them."""
    return Series(facts.methods, _colours(facts), facts.plan.baseline)


def _colours(facts: Facts) -> dict[str, int | None]:
    """Return the colour of each method, so that no two methods have the same one.

    Of more methods than there are colours, the user's own method, the baseline and the best ones by
    the mean over settings have a colour, and the others are grey.
    """
    methods = [*facts.methods]
    if len(methods) <= N_COLOURS:
        return {method: i for i, method in enumerate(methods)}
    ranks = mean_ranks(facts)
    if ranks.isna().all():
        mean_scores = facts.summary.groupby("method")["mean"].mean()
        ranks = mean_scores.rank(ascending=not rising(facts.metric))
    best = ranks.dropna().sort_values(kind="stable").index[:N_BEST]
    chosen = {facts.plan.ours, facts.plan.baseline, *best}
    shown = [method for method in methods if method in chosen]
    return {method: shown.index(method) if method in shown else None for method in methods}
