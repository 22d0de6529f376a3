"""Style of figures, and their conversion to SVG for the page and to SVG and PDF files.

Figures on the page use the page's colours and fonts, so that they fit a light and a dark page.
Figures in files have their own colours and legends. Equal inputs give equal bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec

import numpy as np

if TYPE_CHECKING:  # Commands that print tables need no matplotlib.
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURE_WIDTH = 3.7
"""Width of figures in inches (355 CSS pixels)."""
PAGE_WIDTH = 8.6
"""Width in inches of figures that fill a page (826 CSS pixels)."""


@dataclass(frozen=True)
class Look:
    """Colours of figures.

    Attributes:
        ink: Colour of texts.
        muted: Colour of axes.
        rule: Colour of grid lines.
        paper: Colour of the ground.
        series: Colours of methods, in their order.
        has_legend: Whether a figure needs its own legend.
    """

    ink: str
    muted: str
    rule: str
    paper: str
    series: tuple[str, ...]
    has_legend: bool = False

    def colour(self, i: int) -> str:
        """Return the colour of method ``i``; those after the last colour are grey."""
        return self.series[i] if i < len(self.series) else self.muted

    def style(self) -> Any:
        """Return matplotlib's rcParams."""
        import matplotlib

        return {
            # Start with matplotlib's defaults, so that a user's matplotlibrc changes no report.
            **{k: value for k, value in matplotlib.rcParamsDefault.items() if k != "backend"},
            "svg.fonttype": "none",
            "svg.hashsalt": "fedloom",
            "pdf.fonttype": 42,
            "font.size": 8.5,
            "text.parse_math": False,
            "text.color": self.ink,
            "axes.edgecolor": self.muted,
            "axes.labelcolor": self.ink,
            "axes.linewidth": 0.6,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "axes.unicode_minus": True,
            "grid.color": self.rule,
            "grid.linewidth": 0.6,
            "xtick.color": self.muted,
            "ytick.color": self.muted,
            "xtick.labelcolor": self.ink,
            "ytick.labelcolor": self.ink,
            "xtick.major.width": 0.6,
            "ytick.major.width": 0.6,
            "xtick.major.size": 2.5,
            "ytick.major.size": 2.5,
            "figure.constrained_layout.use": True,
        }


N_COLOURS = 8
PAGE = Look(
    ink="#010203",
    muted="#010204",
    rule="#010205",
    paper="#010206",
    series=tuple(f"#0a0b{i:02x}" for i in range(N_COLOURS)),
)
"""Placeholder colours, which are replaced by the page's CSS variables."""
VARIABLES = {
    **{getattr(PAGE, name): name for name in ("ink", "muted", "rule", "paper")},
    **{colour: f"s{i}" for i, colour in enumerate(PAGE.series)},
}
PRINT = Look(
    ink="#1c1e21",
    muted="#63676e",
    rule="#dddbd4",
    paper="#ffffff",
    series=("#0072b2", "#d55e00", "#009e73", "#b5538f", "#d99a00", "#4ba3d8", "#6b5b95", "#7a7a7a"),
    has_legend=True,
)
"""Colours of figures in files: those of the page on light ground."""


@dataclass(frozen=True)
class Picture:
    """A figure that is drawn when it is needed."""

    draw: Callable[[Look], Figure]

    @cached_property
    def svg(self) -> str:
        """Return the ``svg`` element for the page, without dates and namespaces."""
        text = self._saved(PAGE, "svg")["svg"].decode()
        text = text[text.index("<svg") :]
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
        text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
        text = re.sub(r"(font(?:-family)?:[^;\"]*?)'[^;\"]*sans-serif", r"\1var(--sans)", text)
        for colour, variable in VARIABLES.items():
            text = text.replace(colour, f"var(--{variable})")
        return text.strip()

    def files(self) -> dict[str, bytes]:
        """Return the figure as a PDF and an SVG file, by file extension."""
        return {f".{kind}": data for kind, data in self._saved(PRINT, "svg", "pdf").items()}

    def _saved(self, look: Look, *kinds: str) -> dict[str, bytes]:
        """Return the figure in each format; it is drawn and laid out once for all of them."""
        import matplotlib

        metadata_by_format: dict[str, Any] = {
            "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
            "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
        }
        data_by_format = {}
        with matplotlib.rc_context(look.style()):
            figure = self.draw(look)
            for kind in kinds:
                buffer, metadata = io.BytesIO(), metadata_by_format[kind]
                figure.savefig(buffer, format=kind, transparent=True, metadata=metadata)
                data_by_format[kind] = buffer.getvalue()
                figure.set_layout_engine("none")
        return data_by_format


P = ParamSpec("P")


def as_picture(draw: Callable[Concatenate[Look, P], Figure]) -> Callable[P, Picture]:
    """Turn a function that draws in a look into one that returns a `Picture`."""

    @wraps(draw)
    def make_picture(*args: P.args, **kwargs: P.kwargs) -> Picture:
        return Picture(lambda look: draw(look, *args, **kwargs))

    return make_picture


def logarithmic(axes: Axes, name: Literal["x", "y"], values: np.ndarray) -> None:
    """Make an axis logarithmic, with plain numbers as labels.

    Args:
        axes: The axes of the figure.
        name: The axis.
        values: The values that are drawn; the smaller their range, the more labels there are.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set(**{f"{name}scale": "log"})
    axis = axes.xaxis if name == "x" else axes.yaxis
    span = values.max() / values.min()
    labelled = (1, 1.5, 2, 3, 5, 7) if span < 10 else (1, 2, 5) if span < 100 else (1,)
    axis.set_major_locator(LogLocator(subs=labelled))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axis.set_minor_formatter(NullFormatter())


def axes_of(height: float) -> tuple[Figure, Axes]:
    """Return an empty figure of ``height`` inches and its axes."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(FIGURE_WIDTH, height))
    axes = figure.add_subplot()
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    return figure, axes


def panels_of(count: int, height: float) -> tuple[Figure, list[Axes]]:
    """Return an empty figure of ``height`` inches that fills a page, and its axes side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PAGE_WIDTH, height))
    return figure, [figure.add_subplot(1, count, number + 1) for number in range(count)]


def shade_image(values: np.ndarray) -> np.ndarray:
    """Return an image [rows, columns, 4] of values from 0 (transparent) to 1 (blue).

    An image cannot use the page's colours; this blue is visible on light and on dark ground.
    """
    image = np.empty((*values.shape, 4))
    image[..., :3], image[..., 3] = (0.20, 0.50, 0.80), values
    return image


def with_legend(look: Look, figure: Figure) -> Figure:
    """Add a legend to the figure if its look needs one, and return the figure."""
    handles, names = figure.axes[0].get_legend_handles_labels()
    if look.has_legend and handles:
        rows = -(-len(names) // 2)
        figure.set_figheight(figure.get_figheight() + 0.17 * rows)
        figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False)
    return figure


def with_unique_ids(svg: str, prefix: str, alt: str) -> str:
    """Return an SVG with ids made unique by ``prefix``, and with the text ``alt`` (escaped)."""
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = svg.replace("url(#", f"url(#{prefix}-").replace('href="#', f'href="#{prefix}-')
    return svg.replace("<svg ", f'<svg role="img" aria-label="{alt}" ', 1)
