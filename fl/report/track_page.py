"""The kept tracks in tables and figures: a ranking for each, and one table over all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fl.base.plotting import Look, Picture, as_picture, axes_of
from fl.base.units import operations, size
from fl.report import claims, max_t, tracks
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
    """The methods of a track by mean rank, with intervals, tests against baselines and costs."""
    lines, scores = table[table["track"] == track], tracks.values(table, track)
    tests = tracks.against(table)
    judged = {row["method"]: row for row in tests[tests["track"] == track].to_dict("records")}
    named, places = titles(lines), tracks.ranks(scores).sort_values(kind="stable")
    averages = lines.groupby("method")[["accuracy", "worst_tenth", *COSTS]].mean().to_dict()
    rows = []
    for method in map(str, places.index):
        low, high = claims.interval(tuple(scores[method].dropna()))
        lost = int(scores[method].isna().sum())
        shown = [number(value, "accuracy") for value in (averages["accuracy"][method], low, high)]
        cells = [
            f"{places[method]:.1f}",
            "{} ({} to {})".format(*shown) + (f", {lost} diverged" if lost else ""),
            *_tested(judged.get(method), table),
            number(averages["worst_tenth"][method], "accuracy"),
            *(UNITS[cost](averages[cost][method]) for cost in COSTS),
        ]
        rows.append(Row(named[method], tuple(map(Cell, cells))))
    caption = (
        f"Accuracy (%) over {len(scores)} draws with 95 % bootstrap interval, sorted by mean rank."
    )
    note = (
        f"{rule(table, tests)} Equal: the mean is within one point of 0, by two one-sided tests, "
        "corrected likewise. Worst tenth: of clients. Bytes and operations: of a whole run."
    )
    heads = columns("Method", *RANKING, text=("from", "verdict"))
    return Table(track, caption, heads, tuple(rows), note=note)


RANKING = (
    *("rank", "accuracy", "from", "difference", "corrected\np", "verdict"),
    *("equal within\n1 point", "worst\ntenth", "bytes", "ops"),
)
"""Columns of `ranking`."""


def rule(table: pd.DataFrame, tests: pd.DataFrame) -> str:
    """Return the sentences on what is compared with what, and how it is corrected."""
    named = titles(table)
    is_test = tests["reason"] == ""
    counts = tests[is_test].groupby("family", sort=False).size()
    families = " and ".join(f"the {n} comparisons with {named[str(f)]}" for f, n in counts.items())
    rule = max_t.rule(int(tests["n"].max())) if len(tests) else "sign-flip test"
    return (
        f"Personalised methods are compared with {named.get(tracks.BASELINE, tracks.BASELINE)}, "
        f"methods with a shared model with {named.get(tracks.CHECK, tracks.CHECK)}: {rule} of t, "
        f"corrected by step-down maxT within {families or 'no comparison'} of all tracks."
    )


def _tested(row: Mapping[Any, Any] | None, table: pd.DataFrame) -> tuple[str, ...]:
    """Baseline, difference with interval, corrected p, verdict, equality."""
    if row is None:
        return "", NOTHING, NOTHING, "", ""
    mean, low, high = (
        number(row[key], "accuracy", signed=True) for key in ("difference", "low", "high")
    )
    return (
        _plain_titles(table)[row["other"]],
        f"{mean} ({low} to {high})",
        probability(row["p_corrected"]),
        claims.verdict_text(row),
        claims.equality_text(row),
    )


def _plain_titles(table: pd.DataFrame) -> dict[str, str]:
    return dict(zip(table["method"], table["title"], strict=True))


def overview(table: pd.DataFrame) -> Table:
    """Over tracks: each method's mean difference from its baseline, bold where it is ahead."""
    tests, named = tracks.against(table), titles(table)
    order = [str(track) for track in table["track"].unique()]
    by_key = {(r["method"], r["track"]): r for r in tests.to_dict("records")}
    over_tracks, baseline_of = tracks.over_tracks(tests), tracks.baselines(table)

    def cell(method: str, track: str) -> Cell:
        row = by_key.get((method, track))
        if row is None:
            return Cell(NOTHING)
        remark = row["verdict"] if row["verdict"] != claims.OPEN else ""
        remark = remark or ("equal" if claims.equality_text(row) else "")
        shown = number(row["difference"], "accuracy", signed=True)
        return Cell(shown, best=row["verdict"] == claims.AHEAD, remark=remark)

    def signs(method: str) -> tuple[Cell, Cell]:
        if method not in over_tracks.index:
            return Cell(NOTHING), Cell(NOTHING)
        row = over_tracks.loc[method].to_dict()
        share = f"{row['above']:.0f} of {row['n']:.0f}"
        return Cell(share), Cell(probability(row["p_corrected"]))

    rows = tuple(
        Row(
            named[method],
            (
                Cell(_plain_titles(table)[baseline_of[method]]),
                *(cell(method, track) for track in order),
                *signs(method),
            ),
        )
        for method in _in_order(table)
    )
    caption = (
        "Mean difference of accuracy in points by track, personalised methods first. Bold: ahead; "
        "equal: within one point; without a word: not told apart."
    )
    note = (
        f"{rule(table, tests)} Sorted by mean rank, first the methods that are in all tracks. "
        "Above: tracks whose mean difference is above 0, of those with a difference; with the sign "
        f"test over tracks, corrected likewise. Its smallest p of {len(order)} tracks is "
        f"{max_t.smallest(len(order)):.2g}."
    )
    heads = columns("Method", "from", *order, "above", "sign\ntest", text=("from",))
    return Table("overview", caption, heads, rows, note=note)


def _in_order(table: pd.DataFrame) -> list[str]:
    """Return all methods but the first baseline, in the order of an overview.

    First come those that are compared with it, then those that are in all tracks, then those with
    the lower mean rank as a share of the ranks of each track: a rank in one track is none over all.
    """
    shares = [
        tracks.ranks(scores) / scores.shape[1]
        for scores in (tracks.values(table, track) for track in table["track"].unique())
    ]
    wide = pd.concat(shares, axis=1)
    baseline_of = tracks.baselines(table)
    frame = pd.DataFrame({"mean": wide.mean(axis=1), "absent": wide.isna().sum(axis=1)})
    frame = frame.loc[[method for method in frame.index if method in baseline_of]]
    frame["family"] = [baseline_of[str(method)] != tracks.BASELINE for method in frame.index]
    return [*map(str, frame.sort_values(["family", "absent", "mean"], kind="stable").index)]


def pictures(table: pd.DataFrame) -> dict[str, Picture]:
    """By name of its file: ranks and costs of each track, and the heat map over all."""
    drawn = {"overview": heat_map(table)}
    for track in table["track"].unique():
        lines = table[table["track"] == track]
        drawn[f"{track}-ranks"] = rank_picture(table, track)
        for cost in COSTS:
            drawn[f"{track}-{cost}"] = cost_picture(lines, cost)
    return drawn


@as_picture
def rank_picture(look: Look, table: pd.DataFrame, track: str) -> Canvas:
    """Draw mean ranks, in colour where a method is ahead of its baseline or behind it."""
    scores, named = tracks.values(table, track), titles(table)
    places = tracks.ranks(scores).sort_values(ascending=False, kind="stable")
    tests = tracks.against(table)
    verdicts = dict(tests.loc[tests["track"] == track, ["method", "verdict"]].to_numpy())
    colours = {claims.AHEAD: look.colour(0), claims.BEHIND: look.colour(1)}
    canvas, axes = axes_of(0.8 + 0.13 * len(places))
    heights = np.arange(len(places))
    for verdict in (claims.AHEAD, claims.BEHIND, ""):
        is_drawn = [(v if v in colours else "") == verdict for v in map(verdicts.get, places.index)]
        label = verdict or "baseline or not told apart"
        colour = colours.get(verdict, look.muted)
        axes.plot(places[is_drawn], heights[is_drawn], "o", ms=3.5, color=colour, label=label)
    axes.set_yticks(heights, [named[str(method)] for method in places.index], fontsize=6.5)
    axes.set(xlabel="mean rank", ylim=(-0.7, len(places) - 0.3))
    axes.grid(axis="x")
    axes.legend(fontsize=6.5, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)
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
    """Mean differences from baselines, methods by tracks; a dot where a test says so."""
    tests, named, plain = tracks.against(table), titles(table), _plain_titles(table)
    methods, order = _in_order(table), [*table["track"].unique()]
    baseline_of = tracks.baselines(table)
    labels = [f"{named[method]}, from {plain[baseline_of[method]]}" for method in methods]
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
    axes.set_yticks(range(len(methods)), labels, fontsize=6.5)
    axes.set_xticks(range(len(order)), order, fontsize=6.5, rotation=30, ha="right")
    canvas.colorbar(image, ax=axes, label="points", extend="both")
    return canvas
