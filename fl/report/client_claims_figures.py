"""Figures of claims about clients: all entries over all tracks, a track, and its costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fl.blocks.plotting import PAGE_WIDTH, Look, as_picture, panels_of
from fl.report import claims
from fl.report.cells import unit
from fl.report.client_claims import COST, TrackClaims, families_of, sorted_entries, titles_of
from fl.report.kept_tracks import EQUAL, NO_OP, UNSTABLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SMALL = 7.0
"""Size of letters of entries."""
ROW = 0.165
"""Height of an entry in inches."""
NAMED = 10
"""Number of entries whose curve over budgets is drawn."""


def _styles(look: Look) -> dict[str, dict[str, Any]]:
    """Return marker and colours by verdict; filled ones are claims."""
    grey = look.muted
    return {
        claims.AHEAD: {"marker": "o", "color": look.colour(0), "mfc": look.colour(0)},
        claims.BEHIND: {"marker": "o", "color": look.colour(1), "mfc": look.colour(1)},
        EQUAL: {"marker": "D", "color": look.colour(2), "mfc": look.colour(2)},
        claims.OPEN: {"marker": "o", "color": grey, "mfc": "none"},
        UNSTABLE: {"marker": "s", "color": grey, "mfc": grey},
        NO_OP: {"marker": "x", "color": grey, "mfc": "none"},
    }


def _limit(track: TrackClaims, rows: pd.DataFrame) -> float:
    """Return half the width of an axis that shows most differences with their intervals."""
    differences = rows["difference"].abs().dropna()
    if differences.empty:
        return 3 * track.unit * track.file.margin
    spread = (rows["high"] - rows["low"]).median() / 2
    reach = 1.25 * (differences.quantile(0.85) + spread)
    return track.unit * max(float(reach), 2 * track.file.margin)


def _draw_row(
    look: Look, axes: Axes, height: float, row: dict[Any, Any], track: TrackClaims, limit: float
) -> None:
    """Draw point and interval of a comparison; where the point is beyond the limit, an arrow."""
    style = _styles(look).get(row["verdict"])
    if style is None:
        return
    if row["verdict"] == NO_OP:
        axes.plot(0, height, ls="", ms=3.6, mew=0.9, zorder=3, **style)
        return
    middle, low, high = (track.unit * row[key] for key in ("difference", "low", "high"))
    if abs(middle) > 0.95 * limit:
        side = np.sign(middle)
        axes.plot(side * 0.95 * limit, height, ">" if side > 0 else "<", ms=4, color=style["color"])
        return
    axes.plot([max(low, -limit), min(high, limit)], [height] * 2, color=style["color"], lw=1.1)
    size = 3.4 if style["marker"] == "D" else 3.8
    axes.plot(middle, height, ls="", ms=size, mew=0.9, zorder=3, **style)


def _legend(look: Look, figure: Figure, verdicts: set[str], marks: Sequence[Any] = ()) -> None:
    """Add a legend of the verdicts that occur and of further marks, above the figure."""
    from matplotlib.lines import Line2D

    labels = {NO_OP: "at its no-op: is another entry"}
    handles: list[Any] = [
        Line2D([], [], ms=4.5, lw=0 if v == NO_OP else 1.1, label=labels.get(v, v), **style)
        for v, style in _styles(look).items()
        if v in verdicts
    ]
    handles += marks
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=len(handles),
        frameon=False,
        fontsize=SMALL + 0.5,
    )


def _band(look: Look, axes: Axes, track: TrackClaims) -> None:
    """Shade the differences within which entries are equal."""
    margin = track.unit * track.file.margin
    axes.axvspan(-margin, margin, color=look.rule, alpha=0.6, lw=0)
    axes.axvline(0, color=look.muted, lw=0.7)


@as_picture
def overview(look: Look, tracks: Sequence[TrackClaims]) -> Figure:
    """Draw the difference of each entry on each track from its baseline, with its interval.

    Entries are rows, in families, the best over all tracks first; tracks are panels with an axis of
    their own each.
    """
    from matplotlib.ticker import MaxNLocator

    heights: dict[tuple[str, str], int] = {}
    heads: dict[int, str] = {}
    row = 0
    for family, baseline in families_of(tracks).items():
        heads[row] = f"{family.capitalize()}, from {baseline}"
        row += 1
        for entry in sorted_entries(tracks, family):
            heights[family, entry] = row
            row += 1
    titles = titles_of(tracks)
    figure, panels = panels_of(len(tracks), 1.0 + ROW * row)
    for i, (axes, track) in enumerate(zip(panels, tracks, strict=True)):
        limit = _limit(track, track.verdicts)
        _band(look, axes, track)
        for record in track.verdicts.to_dict("records"):
            height = heights[record["family"], record["entry"]]
            _draw_row(look, axes, height, record, track, limit)
            if abs(track.unit * record["difference"]) > 0.95 * limit:
                side = np.sign(record["difference"])
                axes.text(
                    *(side * 0.84 * limit, height, track.shown(record["difference"])),
                    ha="right" if side > 0 else "left",
                    va="center",
                    fontsize=SMALL - 1,
                    color=look.ink,
                )
        axes.set(xlim=(-limit, limit), ylim=(row - 0.4, -0.6), xlabel=track.unit_text)
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10], symmetric=True))
        axes.tick_params(axis="x", labelsize=SMALL)
        axes.xaxis.label.set_fontsize(SMALL + 0.5)
        axes.set_title(f"{track.name}\n{track.clients} clients", fontsize=SMALL + 1)
        axes.spines["left"].set_visible(False)
        for head in heads:
            axes.axhline(head, color=look.rule, lw=0.6, zorder=0)
        if i:
            axes.tick_params(axis="y", left=False, labelleft=False)
        else:
            names = [titles.get(entry, entry) for _, entry in heights]
            axes.set_yticks([*heads, *heights.values()], [*heads.values(), *names])
            axes.tick_params(axis="y", length=0, labelsize=SMALL)
            for label in axes.get_yticklabels()[: len(heads)]:
                label.set(fontweight="bold", color=look.ink)
    _legend(look, figure, {v for track in tracks for v in track.verdicts["verdict"]})
    return figure


@as_picture
def intervals(look: Look, track: TrackClaims) -> Figure:
    """Draw the comparisons of a track, a family below another, each sorted by its difference.

    A bar stands at the difference from a baseline of equal operations, where there is track.
    """
    from matplotlib.figure import Figure as NewFigure
    from matplotlib.lines import Line2D

    tables = {
        name: rows.sort_values("difference", ascending=False, na_position="last", kind="stable")
        for name, rows in track.verdicts.groupby("family", sort=False)
    }
    counts = [len(rows) for rows in tables.values()]
    figure = NewFigure(figsize=(PAGE_WIDTH, 1.0 + 0.35 * len(counts) + ROW * sum(counts)))
    grid = figure.add_gridspec(len(counts), 1, height_ratios=[n + 1 for n in counts])
    limit = _limit(track, track.verdicts)
    equal = track.at_equal_cost
    for i, (name, rows) in enumerate(tables.items()):
        axes = figure.add_subplot(grid[i])
        _band(look, axes, track)
        at_cost = equal[equal["family"] == name].set_index("entry")["difference"]
        for height, record in enumerate(rows.to_dict("records")):
            _draw_row(look, axes, height, record, track, limit)
            at_cost_of_entry = track.unit * at_cost.get(record["entry"], np.nan)
            if abs(at_cost_of_entry) <= limit:
                axes.plot(at_cost_of_entry, height, "|", ms=6, mew=1.2, color=look.ink, zorder=2.5)
            axes.annotate(
                _row_text(track, record),
                (1.01, height),
                xycoords=("axes fraction", "data"),
                va="center",
                fontsize=SMALL,
                annotation_clip=False,
                color=look.ink,
            )
        family = track.file.families[str(name)]
        axes.set_title(
            f"{str(name).capitalize()}, from {track.title_of(family.baseline)}",
            loc="left",
            fontsize=SMALL + 1.5,
        )
        axes.set(xlim=(-limit, limit), ylim=(len(rows) - 0.4, -0.6))
        axes.set_yticks(range(len(rows)), [track.title_of(entry) for entry in rows["entry"]])
        axes.tick_params(axis="y", length=0, labelsize=SMALL)
        axes.tick_params(axis="x", labelsize=SMALL)
        if i == len(counts) - 1:
            axes.set_xlabel(track.unit_text)
    bar = Line2D(
        *([], []), ls="", marker="|", ms=7, mew=1.2, color=look.ink, label="at equal operations"
    )
    _legend(look, figure, {*track.verdicts["verdict"]}, [bar] if len(equal) else [])
    return figure


def _row_text(track: TrackClaims, record: dict[Any, Any]) -> str:
    """Return difference and interval of a comparison as text."""
    if record["verdict"] not in (claims.AHEAD, claims.BEHIND, EQUAL, claims.OPEN, UNSTABLE):
        return f"is {track.title_of(record['no_op'])}" if record["no_op"] else "no verdict"
    middle, low, high = (track.shown(record[key]) for key in ("difference", "low", "high"))
    return f"{middle} ({low} to {high})"


@as_picture
def costs(look: Look, track: TrackClaims, role: str) -> Figure:
    """Draw values against operations, with curves over budgets of the best and of the baselines.

    A method whose point is above a baseline's curve has more than a longer training of that track.

    Args:
        look: Colours.
        track: The track.
        role: The clients.
    """
    from matplotlib.figure import Figure as NewFigure
    from matplotlib.ticker import NullFormatter

    means = track.means[track.means["clients"] == role]
    baselines = list(
        dict.fromkeys(f.baseline for f in track.file.families.values() if f.clients == role)
    )
    first = means[means["budget"] == 1].set_index("entry")
    reference = float(first[COST][baselines[0]])
    figure = NewFigure(figsize=(PAGE_WIDTH, 4.2))
    axes = figure.add_subplot()
    order = first["value"].sort_values(ascending=track.file.sign < 0, kind="stable").index
    long = means.groupby("entry")["budget"].nunique()
    curved = [e for e in order if long[e] > 1 and e not in baselines][:NAMED]
    ends: list[tuple[float, float, str, str]] = []
    for entry in [*order]:
        rows = means[means["entry"] == entry].sort_values("budget")
        if entry not in (*curved, *baselines):
            rows = rows[rows["budget"] == 1]
        prices, values = rows[COST] / reference, track.unit * rows["value"]
        is_base = entry in baselines
        colour = look.colour(baselines.index(entry)) if is_base else look.muted
        axes.plot(
            prices,
            values,
            marker="o",
            ms=4.5 if is_base else 3,
            lw=2 if is_base else 0.8,
            color=colour,
            alpha=1 if is_base else 0.8,
            zorder=3 if is_base else 2,
        )
        if is_base or entry in curved:
            ends.append((float(prices.iloc[-1]), float(values.iloc[-1]), entry, colour))
    axes.set_xscale("log", base=2)
    highest = (means.loc[means["value"].notna(), COST] / reference).max()
    multiples = [2**i for i in range(max(1, math.ceil(math.log2(highest))) + 1)]
    axes.set_xticks(multiples, [f"{m}" for m in multiples])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(
        xlabel=f"operations, as a multiple of those of {track.title_of(baselines[0])}",
        ylabel=unit(track.file.metric),
    )
    bottom = track.unit * first["value"].quantile(0.12 if track.file.sign > 0 else 0.88)
    best = track.unit * (means["value"].max() if track.file.sign > 0 else means["value"].min())
    room = 0.06 * (best - bottom)
    axes.set_ylim(bottom - room, best + room)
    axes.grid(axis="y")
    _name_ends(axes, ends, track, baselines, [bottom - room, best + room])
    return figure


def _name_ends(
    axes: Axes,
    ends: list[tuple[float, float, str, str]],
    track: TrackClaims,
    baselines: list[str],
    limits: list[float],
) -> None:
    """Name curves at the right of the axes, from top to bottom without overlaps."""
    low, high = limits
    fractions = [(value - low) / (high - low) for _, value, _, _ in ends]
    order = sorted(range(len(ends)), key=lambda i: -fractions[i])
    step = 0.045
    places: list[float] = []
    for i in order:
        places.append(min(fractions[i], places[-1] - step) if places else fractions[i])
    # What runs out at the bottom is shifted up as a block.
    shift = max(0.0, 0.02 - places[-1]) if places else 0.0
    for i, place in zip(order, places, strict=True):
        price, value, entry, colour = ends[i]
        axes.annotate(
            track.title_of(entry),
            (price, value),
            (1.015, min(place + shift, 1.0)),
            textcoords="axes fraction",
            va="center",
            fontsize=SMALL + 0.5,
            color=colour,
            fontweight="bold" if entry in baselines else "normal",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.4, "alpha": 0.6},
        )
