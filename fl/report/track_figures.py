"""Figures of claims about clients: all entries over all tracks, a track, and its costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fl.blocks.plotting import PAGE_WIDTH, Look, as_picture, panels_of
from fl.report import claims
from fl.report.cells import number, unit
from fl.report.track_claims import COST, TrackClaims, families_of, sorted_entries, titles_of
from fl.report.track_verdicts import EQUAL, NO_OP, UNSTABLE

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


def _limits(track: TrackClaims) -> tuple[float, float]:
    """Return the ends of an axis on which three quarters of the differences are seen well.

    What is far beyond most would leave no room for the margin; it gets an arrow. Each side is as
    long as it is needed.
    """
    rows = track.verdicts[track.verdicts["verdict"] != UNSTABLE].dropna(subset=["difference"])
    least = 2 * track.file.margin
    if rows.empty:
        return -track.unit * least, track.unit * least
    spread = (rows["high"] - rows["low"]).median() / 2
    most = max(least, 1.3 * float(rows["difference"].abs().quantile(0.75) + spread))
    low, high = float(np.min(rows["low"])), float(np.max(rows["high"]))
    ends = max(min(-least, 1.08 * low), -most), min(max(least, 1.08 * high), most)
    return track.unit * ends[0], track.unit * ends[1]


def _beyond(difference: float, limits: tuple[float, float]) -> int:
    """Return on which side of an axis a difference is beyond its end; 0 if it is on it."""
    return int(difference > 0.97 * limits[1]) - int(difference < 0.97 * limits[0])


def _draw_row(
    look: Look,
    axes: Axes,
    height: float,
    row: dict[Any, Any],
    track: TrackClaims,
    limits: tuple[float, float],
) -> None:
    """Draw point and interval of a comparison; where the point is beyond an end, an arrow."""
    style = _styles(look).get(row["verdict"])
    if style is None:
        return
    if row["verdict"] == NO_OP:
        # At the point of the entry that it is; the baseline is at 0.
        table = track.verdicts[track.verdicts["family"] == row["family"]]
        same = table.loc[table["entry"] == row["no_op"], "difference"]
        place = float(np.clip(track.unit * same.fillna(0.0).sum(), *limits))
        axes.plot(place, height, ls="", ms=3.6, mew=0.9, zorder=3, **style)
        return
    middle, low, high = (track.unit * row[key] for key in ("difference", "low", "high"))
    if side := _beyond(middle, limits):
        end = limits[side > 0] - 0.02 * side * (limits[1] - limits[0])
        axes.plot(end, height, ">" if side > 0 else "<", ms=4, color=style["color"])
        return
    low, high = max(low, limits[0]), min(high, limits[1])
    axes.plot([low, high], [height] * 2, color=style["color"], lw=1.1)
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
        limits = _limits(track)
        _band(look, axes, track)
        for record in track.verdicts.to_dict("records"):
            height = heights[record["family"], record["entry"]]
            _draw_row(look, axes, height, record, track, limits)
            if side := _beyond(track.unit * record["difference"], limits):
                end = limits[side > 0] - 0.07 * side * (limits[1] - limits[0])
                axes.text(
                    *(end, height, track.shown(record["difference"])),
                    ha="right" if side > 0 else "left",
                    va="center",
                    fontsize=SMALL - 1,
                    color=look.ink,
                )
        axes.set(xlim=limits, ylim=(row - 0.4, -0.6), xlabel=track.unit_text)
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter("{x:g}")  # Panels are narrow.
        axes.tick_params(axis="x", labelsize=SMALL)
        axes.xaxis.label.set_fontsize(SMALL + 0.5)
        axes.set_title(f"{track.name}\n{track.client_count} clients", fontsize=SMALL + 1)
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

    A bar stands at the difference from a baseline of equal operations, where there is one.
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
    limits = _limits(track)
    equal = track.at_equal_cost[COST]
    for i, (name, rows) in enumerate(tables.items()):
        axes = figure.add_subplot(grid[i])
        _band(look, axes, track)
        at_cost = equal[equal["family"] == name].set_index("entry")["difference"]
        for height, record in enumerate(rows.to_dict("records")):
            _draw_row(look, axes, height, record, track, limits)
            at_cost_of_entry = track.unit * at_cost.get(record["entry"], np.nan)
            if limits[0] <= at_cost_of_entry <= limits[1]:
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
        axes.set(xlim=limits, ylim=(len(rows) - 0.4, -0.6))
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

    A method whose point is above a baseline's curve has more than a longer training of that. The
    worst values are named below, so that the others have room; entries at their no-op are left out,
    as they are another one.

    Args:
        look: Colours.
        track: The track.
        role: The clients.
    """
    from matplotlib.figure import Figure as NewFigure
    from matplotlib.ticker import NullFormatter

    rows_off = track.verdicts[track.verdicts["verdict"] == NO_OP]
    off = rows_off.loc[rows_off["clients"] == role, "entry"]
    means = track.means[(track.means["clients"] == role) & ~track.means["entry"].isin(off)]
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
    sign = track.file.sign
    gains = sign * first["value"]
    # Four fifths are seen, and baselines.
    worst = min(gains[gains >= gains.quantile(0.2)].min(), gains[baselines].min())
    bottom = track.unit * sign * worst
    best = track.unit * sign * (sign * means["value"]).max()
    room = 0.06 * (best - bottom) or sign * track.unit * track.file.margin
    lowest = sign * (bottom - room)
    ends: list[tuple[float, float, str, str]] = []
    dots: list[tuple[float, float, str]] = []
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
        if is_base or (entry in curved and sign * values.iloc[-1] >= lowest):
            ends.append((float(prices.iloc[-1]), float(values.iloc[-1]), entry, colour))
        else:
            dots.append((float(prices.iloc[0]), float(values.iloc[0]), entry))
    axes.set_xscale("log", base=2)
    shown = means.loc[sign * track.unit * means["value"] >= lowest, COST] / reference
    powers = (math.floor(math.log2(shown.min())), max(1, math.ceil(math.log2(shown.max()))))
    multiples = [2.0**i for i in range(powers[0], powers[1] + 1)]
    axes.set_xticks(multiples, [f"{m:g}" for m in multiples])
    axes.set_xlim(0.93 * shown.min(), 1.07 * max(multiples[-1] / 1.4, shown.max()))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(
        xlabel=f"operations, as a multiple of those of {track.title_of(baselines[0])}",
        ylabel=unit(track.file.metric),
    )
    axes.set_ylim(bottom - room, best + room)
    axes.grid(axis="y")
    _name_ends(axes, ends, track, baselines, [bottom - room, best + room])
    named = [dot for dot in dots if sign * dot[1] >= lowest]
    _name_dots(look, axes, named, ends, track)
    if below := [dot for dot in dots if dot not in named and not math.isnan(dot[1])]:
        values_of = {e: number(v / track.unit, track.file.metric) for _, v, e in below}
        texts = [f"{track.title_of(entry)} {value}" for entry, value in values_of.items()]
        text = f"worse, below the axis: {', '.join(texts)}"
        axes.annotate(text, (1, -0.17), xycoords="axes fraction", ha="right", fontsize=SMALL)
    return figure


def _name_dots(
    look: Look,
    axes: Axes,
    dots: list[tuple[float, float, str]],
    ends: list[tuple[float, float, str, str]],
    track: TrackClaims,
) -> None:
    """Name dots beside them, each where it covers no other dot and no other name, if it can."""
    (left, right), (low, high) = np.log(axes.get_xlim()), axes.get_ylim()
    letter, line = SMALL / 72 * 0.6 / (PAGE_WIDTH * 0.84), SMALL / 72 * 1.2 / 3.7

    def place(price: float, value: float) -> tuple[float, float]:
        return (math.log(price) - left) / (right - left), (value - low) / (high - low)

    # Boxes that are taken, as left, right, bottom, top in fractions of the axes.
    everywhere = [*(dot[:2] for dot in dots), *(end[:2] for end in ends)]
    centres = [place(price, value) for price, value in everywhere]
    taken = [(x - 0.004, x + 0.004, y - 0.008, y + 0.008) for x, y in centres]
    for i, (*_, entry) in enumerate(dots):
        x, y = centres[i]
        width = letter * len(track.title_of(entry))
        boxes = [
            (start, start + width, y + up - line / 2, y + up + line / 2)
            for up in (0.0, 0.6 * line, -0.6 * line, 1.2 * line, -1.2 * line)
            for start in (x + 0.009, x - 0.009 - width)
        ]

        def overlaps(box: tuple[float, float, float, float], own: int = i) -> bool:
            inside = box[0] >= 0 and box[1] <= 1
            hits = (
                box[0] < b[1] and box[1] > b[0] and box[2] < b[3] and box[3] > b[2]
                for j, b in enumerate(taken)
                if j != own
            )
            return not inside or any(hits)

        box = next((box for box in boxes if not overlaps(box)), boxes[0])
        taken.append(box)
        axes.annotate(
            track.title_of(entry),
            (box[0], (box[2] + box[3]) / 2),
            xycoords="axes fraction",
            va="center_baseline",
            fontsize=SMALL,
            color=look.muted,
        )


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
