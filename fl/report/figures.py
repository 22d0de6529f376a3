"""The figures of a report.

Every panel is one small picture, legible at the width of a phone; the page sets several beside
each other. As files they are SVG and PDF, in a folder of the study's name.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fl.base.schema import SHARES
from fl.blocks.plotting import (
    Look,
    Picture,
    as_picture,
    axes_of,
    logarithmic,
    shade_image,
    with_legend,
)
from fl.report.cells import unit
from fl.report.partitions import Partition

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

MARKERS = ("o", "s", "^", "D", "v", "p")
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.5), (1.5, 1.5), (6, 1.5, 1.5, 1.5))
"""Lengths of the dashes and gaps of lines, in their widths; none for a solid line."""
DASHED = (0, (4, 2))


@dataclass(frozen=True)
class Drawn:
    """Picture from files.

    Attributes:
        svg: The picture for the page.
        content: Contents of its files, by ending.
    """

    svg: str
    content: Mapping[str, bytes]

    def files(self) -> dict[str, bytes]:
        """Return the figure's files, see `Picture.files`."""
        return dict(self.content)


@dataclass(frozen=True)
class Panel:
    """Picture with a title, and a description for readers who do not see it."""

    title: str
    alt: str
    picture: Picture | Drawn


@dataclass(frozen=True)
class Figure:
    """Panels under one caption.

    Attributes:
        name: Name in labels and files, unique in the report.
        caption: One or two sentences of at most 40 words.
        panels: The pictures.
        legend: The methods that need a key.
        note: Details, after the caption.
        number: Number of the figure on the page.
    """

    name: str
    caption: str
    panels: tuple[Panel, ...]
    legend: tuple[str, ...] = ()
    note: str = ""
    number: str = ""


@dataclass(frozen=True)
class Series:
    """Methods as figures draw them.

    Attributes:
        names: Name to show of each method, in the report's order.
        colours: Number of the colour of each method; None for grey.
        baseline: The study's baseline.
    """

    names: Mapping[str, str]
    colours: Mapping[str, int | None]
    baseline: str | None = None

    @property
    def in_colour(self) -> tuple[str, ...]:
        """The methods that have a colour."""
        return tuple(method for method in self.names if self.colours[method] is not None)

    @property
    def drawing_order(self) -> list[str]:
        """The methods, grey ones first, so that they lie below the others."""
        return sorted(self.names, key=lambda method: self.colours[method] is not None)

    @property
    def note(self) -> str:
        """A sentence on grey methods, if there are any."""
        return "Grey: all other methods." if len(self.in_colour) < len(self.names) else ""

    def style(self, look: Look, method: str) -> dict[str, Any]:
        """Return matplotlib's keys of colour and marker of a method."""
        number = self.colours[method]
        if number is None:
            return {"color": look.muted, "alpha": 0.4, "marker": ""}
        return {"color": look.colour(number), "marker": MARKERS[number % len(MARKERS)]}


@as_picture
def curves(
    look: Look,
    frame: pd.DataFrame,
    series: Series,
    metric: str,
    majority: float | None,
    across: str = "round",
) -> matplotlib.figure.Figure:
    """Draw means over rounds with a band of one sd, for one setting; see `draw_curves`."""
    figure, axes = axes_of(2.6)
    draw_curves(look, axes, frame, series, metric, majority, across)
    return figure


def draw_curves(
    look: Look,
    axes: Axes,
    frame: pd.DataFrame,
    series: Series,
    metric: str,
    majority: float | None = None,
    across: str = "round",
) -> None:
    """Draw means over rounds, with the names of methods at the ends of their lines.

    Lines that cover each other differ in their dashes, in their widths, which decrease in the order
    of drawing, and in their markers, which are at different rounds.

    Args:
        look: Colours.
        axes: Axes to draw on.
        frame: ``method``, ``round``, ``mean`` and ``sd_seeds`` of one setting.
        series: The methods.
        metric: The metric.
        majority: Accuracy of predicting each client's majority class, for a line.
        across: What the column ``round`` has.
    """
    scale, present = _scale(metric), set(frame["method"])
    n_coloured = len(series.in_colour)
    ends: list[tuple[str, float]] = []
    for method in series.drawing_order:
        line, number = frame[frame["method"] == method], series.colours[method]
        if method not in present:
            continue
        x, y = line["round"].to_numpy(), scale * line["mean"].to_numpy()
        style = series.style(look, method)
        if number is None:
            axes.plot(x, y, lw=0.9, **style)
            continue
        sd = scale * line["sd_seeds"].fillna(0).to_numpy()
        band = {"color": style["color"], "alpha": min(0.16, 0.8 / n_coloured), "lw": 0}
        axes.fill_between(x, y - sd, y + sd, **band)
        dashes = DASHES[number % len(DASHES)]
        gap = -(-len(x) // 7)
        axes.plot(
            x,
            y,
            lw=2.4 - 1.2 * number / max(1, n_coloured - 1),
            ls=(0, dashes) if dashes else "-",
            ms=3.4,
            markevery=(number * gap // n_coloured, gap),
            label=series.names[method],
            **style,
        )
        ends.append((method, float(y[-1])))
    if majority is not None and np.isfinite(majority):
        axes.axhline(scale * majority, color=look.muted, lw=0.9, ls=DASHED, zorder=1)
    is_round = across == "round"
    last = max([1 if is_round else 0, *frame["round"]])
    axes.set(xlabel=across, ylabel=unit(metric), xlim=(0, last * 1.02))
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=is_round))
    axes.grid(axis="y")
    _name_ends(look, axes, series, ends)


NAME_WIDTH = 15
"""Characters of a line of a method's name beside its curve."""
NAME_HEIGHT = 10.0
"""Height in points of a line of a name."""


def _name_ends(look: Look, axes: Axes, series: Series, ends: Sequence[tuple[str, float]]) -> None:
    """Write the names of methods to the right of the axes, at the ends of their lines.

    Names are moved up and down until they do not cover each other.
    """
    figure = axes.get_figure(root=True)
    if figure is None or not ends:
        return
    low, high = axes.get_ylim()
    # Texts are placed in points above the lower edge of the axes.
    height = axes.get_position().height * 72 * figure.get_figheight()
    end_places = [(float((y - low) / (high - low)) * height, method) for method, y in ends]
    texts = {m: textwrap.wrap(series.names[m], NAME_WIDTH) or [m] for m, _ in ends}
    blocks = [
        (place, method, NAME_HEIGHT * len(texts[method])) for place, method in sorted(end_places)
    ]
    for (_, method, _), place in zip(blocks, _block_centres(blocks, height), strict=True):
        axes.annotate(
            "\n".join(texts[method]),
            xy=(1.0, place / height),
            xycoords="axes fraction",
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=series.style(look, method)["color"],
            fontsize=7.5,
            annotation_clip=False,
        )


def _block_centres(blocks: Sequence[tuple[float, str, float]], top: float) -> list[float]:
    """Return the centres of blocks, near to their places, so that no block covers another.

    Neighbours that would cover each other become a group around the mean of their places, which
    lies between 0 and ``top`` if there is room.

    Args:
        blocks: Place, name and height of each block, sorted by place.
        top: Largest place of an edge.
    """
    groups: list[list[int]] = []

    def half_height(group: list[int]) -> float:
        return sum(blocks[i][2] for i in group) / 2

    def centre(group: list[int]) -> float:
        mean = sum(blocks[i][0] for i in group) / len(group)
        return max(min(mean, top - half_height(group)), half_height(group))

    for i in range(len(blocks)):
        group = [i]
        while groups and centre(group) - half_height(group) < centre(groups[-1]) + half_height(
            groups[-1]
        ):
            group = [*groups.pop(), *group]
        groups.append(group)
    places = []
    for group in groups:
        lower = centre(group) - half_height(group)
        for i in group:
            places.append(lower + blocks[i][2] / 2)
            lower += blocks[i][2]
    return places


CROWD = 60
"""Largest number of clients that are drawn as dots; of more, quantiles are drawn."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@as_picture
def against(
    look: Look, frame: pd.DataFrame, series: Series, metric: str, column: str, label: str
) -> matplotlib.figure.Figure:
    """Draw final means against a ``column``, for one setting; see `draw_against`."""
    figure, axes = axes_of(2.5)
    draw_against(look, axes, frame, series, metric, column, label)
    return with_legend(look, figure)


def draw_against(
    look: Look,
    axes: Axes,
    frame: pd.DataFrame,
    series: Series,
    metric: str,
    column: str,
    label: str,
) -> None:
    """Draw final means with one sd against a ``column`` on a logarithmic scale.

    A logarithmic scale has no 0, so the mean of a method at 0 is a line from edge to edge.

    Args:
        look: Colours.
        axes: Axes to draw on.
        frame: ``method``, ``mean``, ``sd_seeds`` and ``column`` of one setting.
        series: The methods.
        metric: The metric.
        column: The column.
        label: Label of its axis.
    """
    for method in series.drawing_order:
        point, is_grey = frame[frame["method"] == method], series.colours[method] is None
        if not point.empty and not point[column].any():
            colour = series.style(look, method)["color"]
            name = "_" if is_grey else f"{series.names[method]} (0)"
            axes.axhline(_scale(metric) * point["mean"].iloc[0], color=colour, lw=1, label=name)
        elif not point.empty:
            style = series.style(look, method) | ({"marker": "o"} if is_grey else {})
            axes.errorbar(
                point[column],
                _scale(metric) * point["mean"],
                yerr=_scale(metric) * point["sd_seeds"].fillna(0),
                ms=3 if is_grey else 4,
                lw=0.9,
                ls="",
                label="_" if is_grey else series.names[method],
                **style,
            )
    values = frame[column].to_numpy()
    if (values > 0).any():
        logarithmic(axes, "x", values[values > 0])
    axes.set(xlabel=label, ylabel=unit(metric))
    axes.grid(axis="y")


@as_picture
def strips(
    look: Look, frame: pd.DataFrame, series: Series, metric: str
) -> matplotlib.figure.Figure:
    """Draw a row of clients for each method, for one setting; see `draw_strips`."""
    figure, axes = axes_of(0.75 + 0.34 * frame["method"].nunique())
    draw_strips(look, axes, frame, series, metric)
    return figure


def draw_strips(look: Look, axes: Axes, frame: pd.DataFrame, series: Series, metric: str) -> None:
    """Draw the clients of each method in a row, a bar at their mean, and a line at the baseline's.

    A dot per client. For more than `CROWD` clients: the worst and the best, a thin line from the
    5th to the 95th percentile, a thick one between the quartiles, and a gap at the median.

    Args:
        look: Colours.
        axes: Axes to draw on.
        frame: ``method`` and ``value`` of each client of one setting.
        series: The methods.
        metric: The metric.
    """
    names = series.names
    shown = [m for m in names if m in set(frame["method"])]
    scale = _scale(metric)
    for row, method in enumerate(shown):
        values = scale * np.sort(frame.loc[frame["method"] == method, "value"].dropna().to_numpy())
        colour = series.style(look, method)["color"]
        if len(values) > CROWD:
            _quantiles(look, axes, row, values, colour)
        else:
            # The pattern that separates dots is fixed, so that the picture never changes.
            offset = 0.2 * np.array([(0, 1, -1, 0.5, -0.5)[i % 5] for i in range(len(values))])
            axes.scatter(values, row + offset, s=15, color=colour, alpha=0.75, lw=0)
        if len(values):
            axes.plot([values.mean()] * 2, [row - 0.36, row + 0.36], color=look.ink, lw=1.6)
            if method == series.baseline:
                axes.axvline(values.mean(), color=look.muted, lw=0.9, ls=DASHED, zorder=1)
    labels = ["\n".join(textwrap.wrap(names[m], 17)) or m for m in shown]
    axes.set(yticks=range(len(shown)), ylim=(len(shown) - 0.4, -0.6), xlabel=unit(metric))
    axes.set_yticklabels(labels)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")


def _quantiles(look: Look, axes: Axes, row: int, values: np.ndarray, colour: str) -> None:
    low, first, median, third, high = np.quantile(values, QUANTILES)
    ends = [values[0], values[-1]]
    axes.scatter(ends, [row] * 2, s=9, color=colour, alpha=0.75, lw=0)
    axes.plot([low, high], [row] * 2, color=colour, lw=1.6, solid_capstyle="butt")
    axes.plot([first, third], [row] * 2, color=colour, lw=9, solid_capstyle="butt")
    axes.plot([median] * 2, [row - 0.16, row + 0.16], color=look.paper, lw=1.6)


FINEST = 1500
"""Largest number of clients in a picture; of more, so many are drawn, at even distances."""
LETTERS_ACROSS = 50
"""Letters of clients' names that fit side by side; longer names are turned."""
LETTER_HEIGHT = 0.07
"""Inches that a letter of a turned name takes."""
MAX_CLIENTS = 40
"""Largest number of clients or classes in a picture of dots; of more, a shaded grid is drawn."""


@as_picture
def holdings(look: Look, partition: Partition) -> matplotlib.figure.Figure:
    """Draw a partition: clients across, classes down, the area of a dot for the number of samples.

    With more than `MAX_CLIENTS` clients or classes, a grid is drawn whose shade is the logarithm of
    the number, because most dots of a power law would be too small to see. More than `MAX_CLIENTS`
    clients are sorted by their most frequent class and their size, so that neighbours are similar
    if only some of the clients are drawn.
    """
    counts = np.sum(list(partition.counts.values()), axis=0)
    n_clients, n_classes = counts.shape
    figure, axes = axes_of(float(np.clip(0.9 + 0.19 * n_classes, 1.7, 3.6)))
    top = max(int(counts.max()), 1)
    if max(n_clients, n_classes) > MAX_CLIENTS:
        drawn = counts
        if n_clients > MAX_CLIENTS:
            drawn = counts[np.lexsort((-counts.sum(axis=1), counts.argmax(axis=1)))]
            drawn = drawn[np.linspace(0, n_clients - 1, min(n_clients, FINEST)).round().astype(int)]
        shade = shade_image(np.log1p(drawn.T) / np.log1p(top))
        extent = (-0.5, n_clients - 0.5, n_classes - 0.5, -0.5)
        axes.imshow(shade, aspect="auto", interpolation="nearest", extent=extent)
    else:
        client, label = np.nonzero(counts)
        cell = min(210 / n_clients, figure.get_figheight() * 52 / n_classes)
        area = (0.92 * cell) ** 2 * counts[client, label] / top
        axes.scatter(client, label, s=area, color=look.colour(0), alpha=0.75, lw=0)
        axes.set(xlim=(-0.7, n_clients - 0.3), ylim=(n_classes - 0.3, -0.7))
        axes.grid(color=look.rule)
    axes.set(xlabel="client", ylabel="class")
    named = [(axes.xaxis, partition.client_labels), (axes.yaxis, [*partition.classes])]
    if n_clients > MAX_CLIENTS:
        axes.set_xlabel("clients, by most frequent class and size")
        del named[0]
    for axis, names in named:
        step = 1 + (len(names) - 1) // 20
        labels = [textwrap.shorten(name, 14, placeholder="…") for name in names[::step]]
        axis.set_ticks(range(0, len(names), step), labels)
        axis.set_tick_params(length=0)
        if axis is axes.xaxis and len(" ".join(labels)) > LETTERS_ACROSS:
            axis.set_tick_params(rotation=90)
            # Dots were sized for this height of the axes.
            figure.set_figheight(figure.get_figheight() + LETTER_HEIGHT * max(map(len, labels)))
    return figure


def _scale(metric: str) -> int:
    return 100 if metric in SHARES else 1


def contents(figures: Iterable[Figure]) -> dict[str, bytes]:
    """Return the files of every panel of every figure, by their names."""
    contents: dict[str, bytes] = {}
    for figure in figures:
        for panel in figure.panels:
            plain = figure.name if len(figure.panels) == 1 else f"{figure.name}-{slug(panel.title)}"
            name, n = plain, 1
            while f"{name}.pdf" in contents:
                n += 1
                name = f"{plain}-{n}"
            contents |= {f"{name}{end}": content for end, content in panel.picture.files().items()}
    return contents


def slug(title: str) -> str:
    """Return a title as part of a file name that LaTeX accepts too: ``alpha-0_1``."""
    plain = re.sub(r"(?<=\d)\.(?=\d)", "_", title)
    return re.sub(r"[^\w+-]+", "-", plain, flags=re.ASCII).strip("-")[:80]
