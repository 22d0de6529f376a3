"""Single plots of a study on matplotlib's axes, for notebooks, and the frames behind figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import pandas as pd

from fl.base.errors import DataError, Location, unknown_name
from fl.base.plotting import PRINT
from fl.base.schema import StudySetting
from fl.report import figures, over_rounds, summaries
from fl.report.facts import Facts, at
from fl.report.ranks import series_of
from fl.report.summaries import KEY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Kind = Literal["curves", "clients", "cost"]
"""Kinds of plots: values over rounds, of every client, and against bytes."""

COST_LABEL = "bytes up a client and round"


def curve_frame(facts: Facts) -> pd.DataFrame:
    """Return ``mean`` and ``sd_seeds`` by setting, method and round."""
    frame = over_rounds.over_seeds(facts.rows, facts.runs, facts.metric, facts.placed)
    return facts.averaged(frame, {"mean": "sd_seeds"}, [*KEY, "round"])


def client_frame(facts: Facts) -> pd.DataFrame:
    """Return the final ``value`` of each client by setting and method."""
    return facts.placed(summaries.over_clients(facts.rows, facts.runs, facts.metric))


def cost_frame(facts: Facts) -> pd.DataFrame:
    """Return final means by setting and method, with ``bytes_up`` of a client and round."""
    runs = facts.placed(facts.runs[facts.runs["selected"]])
    sent = runs.astype({"bytes_up": "float64"}).groupby(KEY)["bytes_up"].mean()
    return facts.summary.merge(sent.reset_index(), on=KEY)


def plot(
    facts: Facts, kind: Kind, settings: Sequence[StudySetting], axes: Axes | None = None
) -> Axes | np.ndarray:
    """Draw a plot of each setting; return its axes, or an array of axes for several settings.

    Args:
        facts: The study.
        kind: Kind of the plot.
        settings: The settings.
        axes: Axes for a single setting; by default those of a new figure of pyplot.

    Raises:
        ConfigError: For an unknown kind.
        DataError: If there is nothing to draw, or several settings for one pair of axes.
    """
    import matplotlib
    import matplotlib.pyplot as plt

    if kind not in get_args(Kind):
        raise unknown_name(Location("plot"), "kind", kind, get_args(Kind))
    frame = {"curves": curve_frame, "clients": client_frame, "cost": cost_frame}[kind](facts)
    if kind == "cost":
        frame = frame[frame["bytes_up"] > 0]  # The axis is logarithmic.
    drawn = [setting for setting in settings if len(at(frame, setting))]
    if not drawn:
        raise DataError(f"plot: there is no complete run to draw in {kind!r}")
    if axes is not None and len(drawn) > 1:
        raise DataError(
            f"plot: {len(drawn)} settings have one pair of axes",
            advice="choose one by `dataset=`, `partition=` and `model=`",
        )
    with matplotlib.rc_context(PRINT.style()):
        if axes is None:
            height = 0.9 + 0.3 * len(facts.methods) if kind == "clients" else 3.4
            size = 5.2 * len(drawn), height
            _, grid = plt.subplots(1, len(drawn), figsize=size, squeeze=False)
            panels = list(grid[0])
        else:
            panels = [axes]
        for panel, setting in zip(panels, drawn, strict=True):
            _draw(panel, facts, kind, at(frame, setting))
            if len(drawn) > 1:
                panel.set_title(facts.short(setting))
    return panels[0] if len(drawn) == 1 else np.array(panels)


def _draw(axes: Axes, facts: Facts, kind: Kind, frame: pd.DataFrame) -> None:
    """Draw a plot of one setting."""
    series, metric = series_of(facts), facts.metric
    if kind == "curves":
        figures.draw_curves(PRINT, axes, frame, series, metric)
    elif kind == "clients":
        figures.draw_strips(PRINT, axes, frame, series, metric)
    else:
        figures.draw_against(PRINT, axes, frame, series, metric, "bytes_up", COST_LABEL)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize="small")
