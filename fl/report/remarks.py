"""Remarks on what limits a study's numbers: the edge of a grid, too few rounds, a wrong rate.

Each is one sentence with its remedy, and there is none where nothing is to be said.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fl.base.schema import COMPLETE, SHARES, StudySetting, rising
from fl.base.units import config_text
from fl.report import plots
from fl.report.facts import Facts, rows_of_setting
from fl.report.summaries import KEY

LISTED = 6
"""Methods that a remark names; of more, it gives the number."""

LAST_PART = 0.2
"""Share of the rounds over which a curve must stand still at its end."""
RISE = 0.05
"""Share of a curve's whole rise that it may rise by in its last part."""
POINT = 0.01
"""Rise of a share, such as accuracy, in the last part of a curve that says nothing."""

ENORMOUS = 100.0
"""Test loss that no network has whose training worked."""
NEAR_CHANCE = 0.95
"""Share of the loss of constant predictions from which a loss is that of chance."""


def remarks(facts: Facts) -> list[str]:
    """Return the remarks on a study's results, over draws if there are several."""
    return [*filter(None, (_edge_remark(facts), _rising_remark(facts), _chance_remark(facts)))]


def _listed(items: Mapping[str, str]) -> str:
    """Return ``FedAvg (in 2 of 3); Ditto``, from remarks by title."""
    texts = [f"{title}{f' ({note})' * bool(note)}" for title, note in items.items()]
    more = f" and {len(texts) - LISTED} more" if len(texts) > LISTED else ""
    return "; ".join(texts[:LISTED]) + more


def _counts(facts: Facts, by_method: Mapping[str, int], of: Mapping[str, int]) -> str:
    """Return the methods that have a count, with its share if not all settings have it."""
    return _listed(
        {
            title: f"in {by_method[method]} of {of[method]} settings" * (of[method] > 1)
            for method, title in facts.methods.items()
            if by_method.get(method)
        }
    )


def _edge_remark(facts: Facts) -> str:
    """Return the methods whose chosen value is the least or the greatest of its grid."""
    grids: dict[tuple[str, str], set[float]] = {}
    points = {(run.method, run.run): run.point for run in facts.plan.runs}
    for (method, _), point in points.items():
        for key, value in _numbers(point):
            grids.setdefault((method, key), set()).add(value)
    chosen = facts.runs[facts.runs["selected"] & (facts.runs["state"] == COMPLETE)]
    chosen = chosen.drop_duplicates(KEY)
    edges: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    for method, run in zip(chosen["method"], chosen["run"], strict=True):
        for key, value in _numbers(points[method, run]):
            grid = grids[method, key]
            if len(grid) < 2:
                continue
            name = f"{facts.methods[method]}, {key}"
            counts[name] = counts.get(name, 0) + 1
            # No value lies below 0.
            if value == max(grid) or value == min(grid) != 0:
                edges.setdefault(name, []).append(value)
    items = {}
    for name, values in edges.items():
        least_first = " or ".join(config_text(value) for value in sorted(set(values)))
        share = f", in {len(values)} of {counts[name]}" if counts[name] > 1 else ""
        items[f"{name} = {least_first}{share}"] = ""
    if not items:
        return ""
    return (
        f"At the edge of the grid: {_listed(items)}. A value beyond may be better. "
        "Try: a wider grid."
    )


def _numbers(point: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Return the numbers of a point by key, without those of the entry that it starts from."""
    for key, value in point.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and not key.startswith("start."):
            yield key, value


def _rising_remark(facts: Facts) -> str:
    """Return the methods that still become better at the last round."""
    frame, up = plots.curve_frame(facts), rising(facts.metric)
    counts: dict[str, int] = {}
    totals: dict[str, int] = {}
    for key, of_method in frame.groupby(KEY, sort=False):
        curve, method = of_method.sort_values("round"), str(key[-1])
        rounds, values = curve["round"].to_numpy(), curve["mean"].to_numpy() * (1 if up else -1)
        totals[method] = totals.get(method, 0) + 1
        counts[method] = counts.get(method, 0) + _still_rises(
            rounds, values, facts.metric in SHARES
        )
    texts = _counts(facts, counts, totals)
    word = "rising" if up else "falling"
    return f"Still {word} at the last round: {texts}. Try: more rounds." if texts else ""


def _still_rises(rounds: np.ndarray, values: np.ndarray, is_share: bool) -> bool:
    """Whether values rise in the last part of a curve of at least three rounds."""
    if len(values) < 3:
        return False
    start = rounds[-1] - max(1, LAST_PART * (rounds[-1] - rounds[0]))
    before = values[rounds <= start]
    if not len(before):
        return False
    rise = values[-1] - before[-1]
    return bool(rise > RISE * (values[-1] - values[0]) and rise > POINT * is_share)


def _chance_remark(facts: Facts) -> str:
    """Return the methods that end no better than constant predictions, or with a huge loss."""
    metrics = set(facts.rows["metric"])
    if "loss" not in metrics:
        return ""
    losses = facts.summarise("loss")
    shares = facts.summarise("accuracy") if "accuracy" in metrics else None
    counts: dict[str, int] = {}
    huge: dict[str, int] = {}
    totals: dict[str, int] = {}
    for setting in facts.settings:
        of_setting = rows_of_setting(losses, setting).set_index("method")["mean"].dropna()
        hits = (
            rows_of_setting(shares, setting).set_index("method")["mean"]
            if shares is not None
            else None
        )
        entropy, majority = _entropy(facts, setting), facts.population(setting)
        for method, loss in of_setting.items():
            name = str(method)
            totals[name] = totals.get(name, 0) + 1
            at_chance = loss >= 1 if hits is None and "r2" in metrics else False
            if hits is not None and loss >= NEAR_CHANCE * entropy:  # NaN: not known.
                at_chance = bool(hits[name] <= majority + POINT)
            is_huge = loss > ENORMOUS
            huge[name] = huge.get(name, 0) + is_huge
            counts[name] = counts.get(name, 0) + (at_chance and not is_huge)
    remark = ""
    if texts := _counts(facts, huge, totals):
        remark = f"With a huge loss at the end: {texts}. Try: a smaller lr. "
    if texts := _counts(facts, counts, totals):
        remark += f"No better than a constant prediction at the end: {texts}. "
        remark += "Try: more rounds, or another lr."
    return remark.rstrip()


def _entropy(facts: Facts, setting: StudySetting) -> float:
    """Return the loss of predicting the shares of classes in all training samples."""
    partitions = [p for p in facts.partitions_of(setting) if p.by_class]
    values = []
    for partition in partitions:
        counts = partition.counts["train"].sum(axis=0)
        shares = counts[counts > 0] / counts.sum()
        values.append(-float((shares * np.log(shares)).sum()))
    return sum(values) / len(values) if values else math.nan
