"""The look of figures on the page and in files, and how a drawing becomes either.

On the page colours and type are the page's own, so that a figure fits a light and a dark page; a
file has its own colours and its own legend. Equal inputs give equal bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec

import numpy as np

if TYPE_CHECKING:  # Commands that print tables do without matplotlib.
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

WIDTH = 3.7
"""Inches; 355 CSS pixels."""


@dataclass(frozen=True)
class Look:
    """Colours; ``alone``: whether a figure needs a legend of its own."""

    ink: str
    muted: str
    rule: str
    paper: str
    series: tuple[str, ...]
    alone: bool = False

    def colour(self, i: int) -> str:
        """Of method ``i``."""
        return self.series[i % len(self.series)]

    def style(self) -> Any:
        """Settings of matplotlib."""
        import matplotlib

        return {
            # From the defaults, so that a user's matplotlibrc changes no report.
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
"""Placeholders, replaced by the page's CSS variables."""
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
    alone=True,
)
"""The page's colours on light ground."""


@dataclass(frozen=True)
class Picture:
    """A drawing that is not drawn yet."""

    draw: Callable[[Look], Canvas]

    @cached_property
    def svg(self) -> str:
        """The bare ``svg`` element for the page, without dates or namespaces."""
        text = self._saved(PAGE, "svg").decode()
        text = text[text.index("<svg") :]
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
        text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
        text = re.sub(r"(font(?:-family)?:[^;\"]*?)'[^;\"]*sans-serif", r"\1var(--sans)", text)
        for colour, variable in VARIABLES.items():
            text = text.replace(colour, f"var(--{variable})")
        return text.strip()

    def files(self) -> dict[str, bytes]:
        """The picture as an SVG and as a PDF file, by the end of the name."""
        return {f".{kind}": self._saved(PRINT, kind) for kind in ("pdf", "svg")}

    def _saved(self, look: Look, kind: str) -> bytes:
        import matplotlib

        nothing = {
            "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
            "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
        }
        buffer = io.BytesIO()
        with matplotlib.rc_context(look.style()):
            metadata: Any = nothing[kind]
            self.draw(look).savefig(buffer, format=kind, transparent=True, metadata=metadata)
        return buffer.getvalue()


P = ParamSpec("P")


def pictured(draw: Callable[Concatenate[Look, P], Canvas]) -> Callable[P, Picture]:
    """Makes of a function that draws in a look one that returns the `Picture`."""

    @wraps(draw)
    def made(*args: P.args, **kwargs: P.kwargs) -> Picture:
        return Picture(lambda look: draw(look, *args, **kwargs))

    return made


def logarithmic(axes: Axes, name: Literal["x", "y"], values: np.ndarray) -> None:
    """Make an axis logarithmic, with plain numbers, as no mathematics is set in texts; the more of
    them, the less the ``values`` that are drawn span.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set(**{f"{name}scale": "log"})
    axis = axes.xaxis if name == "x" else axes.yaxis
    span = values.max() / values.min()
    told = (1, 1.5, 2, 3, 5, 7) if span < 10 else (1, 2, 5) if span < 100 else (1,)
    axis.set_major_locator(LogLocator(subs=told))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axis.set_minor_formatter(NullFormatter())


def axes_of(height: float) -> tuple[Canvas, Axes]:
    """An empty picture of ``height`` inches."""
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import MaxNLocator

    canvas = Canvas(figsize=(WIDTH, height))
    axes = canvas.add_subplot()
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    return canvas, axes


def shaded(values: np.ndarray) -> np.ndarray:
    """An image [rows, columns, 4] of values from 0 (blank) to 1.

    An image cannot take the page's colours: this blue shows on light and on dark ground.
    """
    image = np.empty((*values.shape, 4))
    image[..., :3], image[..., 3] = (0.20, 0.50, 0.80), values
    return image


def with_legend(look: Look, canvas: Canvas) -> Canvas:
    """``canvas`` with the names of what it shows, where the page does not say them."""
    handles, names = canvas.axes[0].get_legend_handles_labels()
    if look.alone and handles:
        rows = -(-len(names) // 2)
        canvas.set_figheight(canvas.get_figheight() + 0.17 * rows)
        canvas.legend(handles, names, loc="outside lower center", ncols=2, frameon=False)
    return canvas


def placed(svg: str, prefix: str, alt: str) -> str:
    """``svg`` with its ids made unique by ``prefix`` and described by ``alt`` (escaped text)."""
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = svg.replace("url(#", f"url(#{prefix}-").replace('href="#', f'href="#{prefix}-')
    return svg.replace("<svg ", f'<svg role="img" aria-label="{alt}" ', 1)
