"""The figures of a report.

Every panel is one small picture, legible at the width of a phone; the page sets several beside
each other.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from fl.base.drawing import N_COLOURS, Look, Picture, axes_of, pictured, with_legend
from fl.base.schema import SHARES
from fl.report.cells import unit
from fl.report.partitions import Partition

MARKERS = ("o", "s", "^", "D", "v", "p")
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)))
DASHED = (0, (4, 2))


@dataclass(frozen=True)
class Drawn:
    """A picture from files: as the page shows it, and the files by the end of their name."""

    svg: str
    content: Mapping[str, bytes]

    def files(self) -> dict[str, bytes]:
        """As `Picture.files`."""
        return dict(self.content)


@dataclass(frozen=True)
class Panel:
    """One picture: its title, what it shows in words, the picture."""

    title: str
    alt: str
    picture: Picture | Drawn


@dataclass(frozen=True)
class Figure:
    """Panels under one caption; ``legend`` lists the methods that need a key."""

    name: str
    caption: str
    panels: tuple[Panel, ...]
    legend: tuple[str, ...] = ()
    number: str = ""


@pictured
def curves(
    look: Look, frame: pd.DataFrame, names: Mapping[str, str], metric: str, majority: float | None
) -> Canvas:
    """Mean over rounds with a band of one sd over seeds, for one setting.

    A method with fewer than three recorded rounds is a dotted line at its last value.
    """
    canvas, axes = axes_of(2.5)
    last = max([1, *frame["round"]])
    scale = _scale(metric)
    for i, method in enumerate(names):
        part = frame[frame["method"] == method]
        if part.empty:
            continue
        colour, x, y = look.colour(i), part["round"].to_numpy(), scale * part["mean"]
        sd = scale * part["sd_seeds"].fillna(0).to_numpy()
        if len(part) < 3:
            axes.plot([0, last], [y.iloc[-1]] * 2, color=colour, lw=1.5, ls=(0, (1, 1.6)))
            axes.plot([last], [y.iloc[-1]], color=colour, marker=MARKERS[i % len(MARKERS)], ms=4,
                      label=names[method])  # fmt: skip
            continue
        axes.fill_between(x, y - sd, y + sd, color=colour, alpha=min(0.16, 0.8 / len(names)), lw=0)
        every = (max(1, len(x) // 7) * (i % 2) // 2, max(1, len(x) // 7))
        axes.plot(x, y, color=colour, lw=1.5, ls=DASHES[i // N_COLOURS % 3],
                  marker=MARKERS[i % len(MARKERS)], ms=3.4, markevery=every,
                  label=names[method])  # fmt: skip
    if majority is not None and np.isfinite(majority):
        axes.axhline(scale * majority, color=look.muted, lw=0.9, ls=DASHED, zorder=1)
    axes.set(xlabel="round", ylabel=unit(metric), xlim=(0, last * 1.02))
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
    axes.grid(axis="y")
    return with_legend(look, canvas)


CROWD = 60
"""Clients that are drawn as a dot each; of more, quantiles are drawn."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@pictured
def strips(
    look: Look,
    frame: pd.DataFrame,
    names: Mapping[str, str],
    metric: str,
    label: str = "",
    zero: bool = False,
) -> Canvas:
    """One row per method, for one setting: its clients, and a bar at their mean.

    A dot per client. For more than `CROWD` clients: the worst and the best, a thin line from the
    5th to the 95th percentile, a thick one between the quartiles, and a gap at the median.

    Args:
        zero: Whether to draw a line at no difference.
    """
    shown = [m for m in names if m in set(frame["method"])]
    canvas, axes = axes_of(0.75 + 0.34 * len(shown))
    scale, order = _scale(metric), list(names)
    for row, method in enumerate(shown):
        values = scale * np.sort(frame.loc[frame["method"] == method, "value"].dropna().to_numpy())
        colour = look.colour(order.index(method))
        if len(values) > CROWD:
            _quantiles(look, axes, row, values, colour)
        else:
            # A fixed pattern keeps dots apart without chance, so that the picture never changes.
            offset = 0.2 * np.array([(0, 1, -1, 0.5, -0.5)[i % 5] for i in range(len(values))])
            axes.scatter(values, row + offset, s=15, color=colour, alpha=0.75, lw=0)
        if len(values):
            axes.plot([values.mean()] * 2, [row - 0.36, row + 0.36], color=look.ink, lw=1.6)
    if zero:
        axes.axvline(0, color=look.muted, lw=0.9, ls=DASHED, zorder=1)
    labels = ["\n".join(textwrap.wrap(names[m], 17)) or m for m in shown]
    axes.set(yticks=range(len(shown)), ylim=(len(shown) - 0.4, -0.6), xlabel=label or unit(metric))
    axes.set_yticklabels(labels)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    return canvas


def _quantiles(look: Look, axes: Axes, row: int, values: np.ndarray, colour: str) -> None:
    low, first, median, third, high = np.quantile(values, QUANTILES)
    ends = [values[0], values[-1]]
    axes.scatter(ends, [row] * 2, s=9, color=colour, alpha=0.75, lw=0)
    axes.plot([low, high], [row] * 2, color=colour, lw=1.6, solid_capstyle="butt")
    axes.plot([first, third], [row] * 2, color=colour, lw=9, solid_capstyle="butt")
    axes.plot([median] * 2, [row - 0.16, row + 0.16], color=look.paper, lw=1.6)


@pictured
def change(look: Look, frame: pd.DataFrame, names: Mapping[str, str], metric: str) -> Canvas:
    """A dot per client, before against after personalisation, with the line of no change."""
    canvas, axes = axes_of(2.9)
    scale = _scale(metric)
    values = scale * frame.groupby(["method", "client"])[["before", "after"]].mean().to_numpy()
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    margin = 0.06 * (high - low) or 1.0
    ends = (low - margin, high + margin)
    axes.plot(ends, ends, color=look.muted, lw=0.9, ls=DASHED)
    for i, method in enumerate(names):
        part = frame[frame["method"] == method].groupby("client")[["before", "after"]].mean()
        axes.scatter(scale * part["before"], scale * part["after"], s=20, alpha=0.75, lw=0,
                     color=look.colour(i), marker=MARKERS[i % len(MARKERS)],
                     label=names[method])  # fmt: skip
    axes.set(
        xlim=ends, ylim=ends, xlabel=f"before: {unit(metric)}", ylabel=f"after: {unit(metric)}"
    )
    axes.set_aspect("equal")
    axes.grid()
    return with_legend(look, canvas)


FINEST = 1500
"""Clients that a picture tells apart; of more, as many in even steps are drawn."""
MOST = 40
"""Clients or classes that a bubble picture can hold; beyond, a shaded grid takes its place."""


@pictured
def holdings(look: Look, partition: Partition) -> Canvas:
    """The partition: clients across, classes down, area proportional to samples.

    With more than `MOST` clients or classes, a grid shaded by the logarithm, as areas would leave
    sizes that follow a power law blank. More than `MOST` clients are sorted by their most frequent
    class and their size, so that neighbours are alike where only a part of them can be shown.
    """
    counts = np.sum(list(partition.counts.values()), axis=0)
    n_clients, n_classes = counts.shape
    canvas, axes = axes_of(float(np.clip(0.9 + 0.19 * n_classes, 1.7, 3.6)))
    top = max(int(counts.max()), 1)
    if max(n_clients, n_classes) > MOST:
        # An image cannot take the page's colours: a mid blue shows on light and on dark ground.
        held = counts
        if n_clients > MOST:
            held = counts[np.lexsort((-counts.sum(axis=1), counts.argmax(axis=1)))]
            held = held[np.linspace(0, n_clients - 1, min(n_clients, FINEST)).round().astype(int)]
        # An image cannot take the page's colours: a mid blue shows on light and on dark ground.
        shade = np.zeros((n_classes, len(held), 4))
        shade[..., :3], shade[..., 3] = (0.20, 0.50, 0.80), np.log1p(held.T) / np.log1p(top)
        extent = (-0.5, n_clients - 0.5, n_classes - 0.5, -0.5)
        axes.imshow(shade, aspect="auto", interpolation="nearest", extent=extent)
    else:
        client, label = np.nonzero(counts)
        cell = min(210 / n_clients, canvas.get_figheight() * 52 / n_classes)
        area = (0.92 * cell) ** 2 * counts[client, label] / top
        axes.scatter(client, label, s=area, color=look.colour(0), alpha=0.75, lw=0)
        axes.set(xlim=(-0.7, n_clients - 0.3), ylim=(n_classes - 0.3, -0.7))
        axes.grid(color=look.rule)
    axes.set(xlabel="client", ylabel="class")
    named = [(axes.xaxis, partition.clients), (axes.yaxis, partition.classes)]
    if n_clients > MOST:
        axes.set_xlabel("clients, by most frequent class and size")
        del named[0]
    for axis, names in named:
        step = 1 + (len(names) - 1) // 20
        axis.set_ticks(
            range(0, len(names), step),
            [textwrap.shorten(str(n), 14, placeholder="…") for n in names[::step]],
        )
        axis.set_tick_params(length=0)
    return canvas


def _scale(metric: str) -> int:
    return 100 if metric in SHARES else 1
