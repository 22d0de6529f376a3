"""The kept tracks in tables and figures: a ranking for each, and one table over all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fl.base.plotting import Look, Picture, as_picture, axes_of
from fl.base.units import operations, size
from fl.report import claims, tracks
from fl.report.cells import NOTHING, Cell, Row, Table, columns, number, probability

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

CONTROLS = ("local", tracks.CHECK, tracks.BASELINE)
"""Entries that stand for no method of their own, marked in tables."""
COSTS = {"bytes": "bytes, all clients", "operations": "operations, all clients"}
UNITS = {"bytes": size, "operations": operations}


def titles(table: pd.DataFrame) -> dict[str, str]:
    """By entry its title; controls are marked."""
    named = dict(zip(table["method"], table["title"], strict=True))
    return {m: f"{t} (control)" if m in CONTROLS else t for m, t in named.items()}


def ranking(table: pd.DataFrame, track: str) -> Table:
    """The methods of a track by mean rank, with intervals, tests against the baseline and costs."""
    lines, scores = table[table["track"] == track], tracks.values(table, track)
    tests = tracks.against(table)
    judged = {row["method"]: row for row in tests[tests["track"] == track].to_dict("records")}
    named, places = titles(lines), tracks.ranks(scores).sort_values(kind="stable")
    averages = lines.groupby("method")[["accuracy", "worst_tenth", *COSTS]].mean().to_dict()
    statistic, p = tracks.friedman(scores)
    gap = tracks.critical_difference(*reversed(scores.shape))
    rows = []
    for method in map(str, places.index):
        low, high = claims.interval(scores[method].dropna().tolist())
        lost = int(scores[method].isna().sum())
        shown = [number(value, "accuracy") for value in (averages["accuracy"][method], low, high)]
        cells = [
            f"{places[method]:.1f}",
            "{} ({} to {})".format(*shown) + (f", {lost} diverged" if lost else ""),
            *_tested(judged.get(method)),
            number(averages["worst_tenth"][method], "accuracy"),
            *(UNITS[cost](averages[cost][method]) for cost in COSTS),
        ]
        rows.append(Row(named[method], tuple(map(Cell, cells))))
    base = named[tracks.BASELINE]
    caption = (
        f"Accuracy (%) over {len(scores)} draws with 95 % bootstrap interval, sorted by mean rank."
    )
    note = (
        f"Difference: from {base}, with p of the exact sign-flip test, corrected by Holm for all "
        f"{int(tests['p'].notna().sum())} comparisons of all tracks. Worst tenth: of clients. "
        f"Bytes and operations: of a whole run. Friedman's test that all rank alike: "
        f"{statistic:.0f}, p {probability(p)}; by Nemenyi's, ranks less than {gap:.1f} apart are "
        "not told apart."
    )
    names = ("rank", "accuracy", "difference", "Holm", "verdict", "worst\ntenth", "bytes", "ops")
    heads = columns("Method", *names, text=("verdict",))
    return Table(track, caption, heads, tuple(rows), note=note)


def _tested(row: Mapping[Any, Any] | None) -> tuple[str, str, str]:
    """Difference with interval, corrected p, verdict."""
    if row is None:
        return NOTHING, NOTHING, ""
    mean, low, high = (
        number(row[key], "accuracy", signed=True) for key in ("difference", "low", "high")
    )
    verdict = f"{row['verdict']} ({row['reason']})" if row["reason"] else str(row["verdict"])
    return f"{mean} ({low} to {high})", probability(row["p_holm"]), verdict


def overview(table: pd.DataFrame) -> Table:
    """Over tracks: each method's mean difference from the baseline, bold where it is ahead."""
    tests, named = tracks.against(table), titles(table)
    order = [str(track) for track in table["track"].unique()]
    by_key = {(r["method"], r["track"]): r for r in tests.to_dict("records")}

    def cell(method: str, track: str) -> Cell:
        row = by_key.get((method, track))
        if row is None:
            return Cell(NOTHING)
        remark = row["verdict"] if row["verdict"] != claims.OPEN else ""
        shown = number(row["difference"], "accuracy", signed=True)
        return Cell(shown, best=row["verdict"] == claims.AHEAD, remark=remark)

    rows = tuple(
        Row(named[method], tuple(cell(method, track) for track in order))
        for method in _by_mean(table)
    )
    caption = (
        f"Mean difference of accuracy from {named[tracks.BASELINE]} in points, by track; the best "
        "mean rank first. Bold: ahead. Without a word: not told apart."
    )
    return Table("overview", caption, columns("Method", *order), rows)


def _by_mean(table: pd.DataFrame) -> list[str]:
    """All methods but the baseline, by their mean rank as a share of the ranks of each track."""
    shares = [
        tracks.ranks(scores) / scores.shape[1]
        for scores in (tracks.values(table, track) for track in table["track"].unique())
    ]
    mean = pd.concat(shares, axis=1).mean(axis=1).drop(tracks.BASELINE)
    return [str(method) for method in mean.sort_values(kind="stable").index]


def pictures(table: pd.DataFrame) -> dict[str, Picture]:
    """By name of its file: ranks and costs of each track, and the heat map over all."""
    drawn = {"overview": heat_map(table)}
    for track in table["track"].unique():
        lines = table[table["track"] == track]
        drawn[f"{track}-ranks"] = rank_picture(lines, track)
        for cost in COSTS:
            drawn[f"{track}-{cost}"] = cost_picture(lines, cost)
    return drawn


@as_picture
def rank_picture(look: Look, lines: pd.DataFrame, track: str) -> Canvas:
    """Draw mean ranks, each with half the critical difference to both sides.

    Methods whose lines do not meet differ by Nemenyi's test.
    """
    scores, named = tracks.values(lines, track), titles(lines)
    places = tracks.ranks(scores).sort_values(ascending=False, kind="stable")
    gap = tracks.critical_difference(*reversed(scores.shape))
    canvas, axes = axes_of(0.6 + 0.13 * len(places))
    heights = np.arange(len(places))
    axes.errorbar(
        places,
        heights,
        xerr=gap / 2,
        fmt="o",
        ms=3,
        color=look.colour(0),
        ecolor=look.muted,
        lw=0.8,
    )
    axes.set_yticks(heights, [named[str(method)] for method in places.index], fontsize=6.5)
    axes.set(xlabel="mean rank", ylim=(-0.7, len(places) - 0.3))
    axes.grid(axis="x")
    return canvas


@as_picture
def cost_picture(look: Look, lines: pd.DataFrame, cost: str) -> Canvas:
    """Accuracy against a cost, with Pareto's front."""
    averages = lines.groupby("method", sort=False)[["accuracy", cost]].mean()
    best, named = tracks.front(lines, cost), titles(lines)
    canvas, axes = axes_of(2.6)
    axes.xaxis.set_major_formatter(lambda value, _: UNITS[cost](value))
    axes.plot(averages[cost], 100 * averages["accuracy"], "o", ms=3, color=look.muted)
    on_front = averages.loc[best]
    axes.plot(
        on_front[cost],
        100 * on_front["accuracy"],
        "o-",
        ms=4,
        lw=0.9,
        color=look.colour(0),
        drawstyle="steps-post",
    )
    for method, row in on_front.iterrows():
        place = (row[cost], 100 * row["accuracy"])
        axes.annotate(named[str(method)], place, (3, -8), textcoords="offset points", fontsize=6.5)
    low, limit = 100 * averages["accuracy"].quantile(0.15), averages[cost].max()
    axes.set_xlim(-0.03 * limit, 1.05 * limit)
    axes.set(xlabel=COSTS[cost], ylabel="accuracy (%)", ylim=(low, None))
    axes.grid(axis="y")
    return canvas


@as_picture
def heat_map(_: Look, table: pd.DataFrame) -> Canvas:
    """Mean differences from the baseline, methods by tracks; a dot where a test says so."""
    tests, named = tracks.against(table), titles(table)
    methods, order = _by_mean(table), [*table["track"].unique()]
    wide = tests.pivot(index="method", columns="track", values="difference")
    shown = 100 * wide.reindex(index=methods, columns=order)
    canvas, axes = axes_of(0.8 + 0.14 * len(methods))
    limit = 10.0
    values = shown.to_numpy(float)
    image = axes.imshow(values, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    passed: Mapping[Any, Any] = {
        (row["method"], row["track"]): row["verdict"] in (claims.AHEAD, claims.BEHIND)
        for row in tests.to_dict("records")
    }
    for i, method in enumerate(methods):
        for j, track in enumerate(order):
            if passed.get((method, track)):
                # On cells, whose colours no page changes.
                dark = abs(values[i, j]) > limit / 2
                axes.plot(j, i, ".", ms=3, color="white" if dark else "black")
    axes.set_yticks(range(len(methods)), [named[m] for m in methods], fontsize=6.5)
    axes.set_xticks(range(len(order)), order, fontsize=6.5, rotation=30, ha="right")
    canvas.colorbar(image, ax=axes, label="points", extend="both")
    return canvas
