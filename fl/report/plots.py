"""Content of a study's figures: methods in their colours, frames of values, and single plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import pandas as pd

from fl.base.errors import DataError, Location, unknown_name
from fl.base.schema import SETTING, StudySetting, rising
from fl.base.units import size
from fl.blocks.plotting import N_COLOURS, PRINT, Look
from fl.report import figures, many_methods, summaries
from fl.report.cells import unit
from fl.report.facts import Facts, rows_of_setting
from fl.report.figures import Series
from fl.report.many_methods import Drawing
from fl.report.summaries import KEY

if TYPE_CHECKING:
    from matplotlib.axes import Axes


N_BEST = 5
"""Number of the best methods that a figure of more than `N_COLOURS` methods shows in colour."""

Kind = Literal["curves", "time", "clients", "cost", "intervals", "settings", "ranks"]
"""Kinds of plots: values over rounds, over simulated time, of every client, and against bytes; of
all methods, means with intervals, differences by setting, and mean ranks.
"""

COST_LABEL = "bytes of a run"
TIME_LABEL = "simulated seconds"

TIMES = 60
"""Number of times at which a curve over simulated time is drawn."""


def mean_ranks(facts: Facts) -> pd.Series:
    """Return the mean rank over settings by method, 1 for the best; equal values share a rank.

    A method that lacks a value in some setting has none. Empty for fewer than two settings or three
    methods, whose order a reader sees.
    """
    frame = facts.summary
    table = frame.pivot_table("mean", SETTING, "method", dropna=False, observed=True)
    table = table.reindex(columns=[*facts.methods])
    if len(table) < 2 or table.shape[1] < 3:
        return pd.Series(dtype="float64")
    ranks = table.rank(axis=1, ascending=not rising(facts.metric))
    return ranks.mean(skipna=False)


def series_of(facts: Facts) -> Series:
    """Return the methods of a report as its figures draw them.

    If there are more methods than colours, ranks over all draws decide which have one, in figures
    of single draws and in the legend too.
    """
    if not facts.over_draws:
        facts = facts.merged_draws or facts
    return Series(facts.methods, _colours(facts), facts.plan.baseline)


def _colours(facts: Facts) -> dict[str, int | None]:
    """Return the colour of each method, so that no two methods have the same one.

    Of more methods than there are colours, the user's own method, the baseline and the best ones by
    the mean over settings have a colour, and the others are grey.
    """
    methods = [*facts.methods]
    if len(methods) <= N_COLOURS:
        return {method: i for i, method in enumerate(methods)}
    ranks = mean_ranks(facts)
    if ranks.isna().all():
        mean_scores = facts.summary.groupby("method")["mean"].mean()
        ranks = mean_scores.rank(ascending=not rising(facts.metric))
    best = ranks.dropna().sort_values(kind="stable").index[:N_BEST]
    chosen = {facts.plan.ours, facts.plan.baseline, *best}
    shown = [method for method in methods if method in chosen]
    return {method: shown.index(method) if method in shown else None for method in methods}


def curve_frame(facts: Facts) -> pd.DataFrame:
    """Return ``mean`` and ``sd_seeds`` by setting, method and round."""
    frame = summaries.mean_curves(facts.rows, facts.runs, facts.metric, facts.with_settings)
    return facts.mean_over_draws(frame, {"mean": "sd_seeds"}, [*KEY, "round"])


def client_frame(facts: Facts) -> pd.DataFrame:
    """Return the final ``value`` of each client by setting and method."""
    return facts.with_settings(summaries.over_clients(facts.rows, facts.runs, facts.metric))


def time_frame(facts: Facts) -> pd.DataFrame:
    """Return means by setting, method and simulated time, which is in the column ``round``."""
    lines = facts.with_settings(facts.timed_curves)
    if lines.empty:
        return lines
    curves = lines.groupby(KEY, sort=False, observed=True)[[*lines.columns]].apply(_over_time)
    return curves.reset_index(KEY)


def _over_time(lines: pd.DataFrame) -> pd.DataFrame:
    """Return ``mean`` and ``sd_seeds`` over runs at times, which are in the column ``round``."""
    runs = [run.sort_values("seconds") for _, run in lines.groupby("run", observed=True)]
    begin = max(float(run["seconds"].iloc[0]) for run in runs)
    end = min(float(run["seconds"].iloc[-1]) for run in runs)
    times = np.linspace(min(begin, end), end, TIMES)
    places = [np.searchsorted(run["seconds"], times + 1e-9 * end, side="right") - 1 for run in runs]
    values = np.stack(
        [run["value"].to_numpy()[place.clip(0)] for run, place in zip(runs, places, strict=True)]
    )
    spread = values.std(axis=0, ddof=1) if len(runs) > 1 else np.full(len(times), np.nan)
    return pd.DataFrame({"round": times, "mean": values.mean(axis=0), "sd_seeds": spread})


def cost_frame(facts: Facts) -> pd.DataFrame:
    """Return final means by setting and method, with ``whole_bytes`` (`summaries.whole_costs`)."""
    runs = facts.with_settings(summaries.whole_costs(facts.runs))
    sent = runs.groupby(KEY)["whole_bytes"].mean()
    return facts.summary.merge(sent.reset_index(), on=KEY)


def upload_frame(facts: Facts) -> pd.DataFrame:
    """Return final means by setting and method, with ``bytes_up`` of a client and round."""
    runs = facts.with_settings(facts.runs[facts.runs["selected"]])
    sent = runs.astype({"bytes_up": "float64"}).groupby(KEY)["bytes_up"].mean()
    return facts.summary.merge(sent.reset_index(), on=KEY)


FRAMES = {"curves": curve_frame, "time": time_frame, "clients": client_frame, "cost": cost_frame}
"""Function to the frame of a plot, for the kinds that are drawn by setting."""


def plot(
    facts: Facts,
    kind: Kind,
    settings: Sequence[StudySetting],
    axes: Axes | None = None,
    methods: Sequence[str] | None = None,
    metrics: Sequence[str] | None = None,
) -> Axes | np.ndarray:
    """Draw a plot of each setting; return its axes, or an array of axes for several settings.

    Args:
        facts: The study.
        kind: Kind of the plot.
        settings: The settings.
        methods: Labels of the entries, in their order; by default all.
        metrics: Metrics, each with plots of its own; by default the study's.
        axes: Axes for a single setting; by default those of a new figure of pyplot.

    Raises:
        ConfigError: For an unknown kind.
        DataError: If there is nothing to draw, or several settings for one pair of axes.
    """
    import matplotlib
    import matplotlib.pyplot as plt

    if kind not in get_args(Kind):
        raise unknown_name(Location("plot"), "kind", kind, get_args(Kind))
    names = {metric: f": {unit(metric)}" * (len(metrics or ()) > 1) for metric in metrics or ()}
    drawings = [
        replace(drawing, title=drawing.title + names.get(metric, ""))
        for metric in metrics or [facts.metric]
        for drawing in _drawings(facts.only(methods or [*facts.methods], metric), kind, settings)
    ]
    if not drawings:
        raise DataError(f"plot: {_missing(kind)}")
    if axes is not None and len(drawings) > 1:
        raise DataError(
            f"plot: {len(drawings)} plots have one pair of axes",
            advice="choose one by `settings=` and `metrics=`",
        )
    with matplotlib.rc_context(PRINT.style()):
        if axes is None:
            widths, heights = zip(*(drawing.size for drawing in drawings), strict=True)
            size = sum(widths), max(heights)
            _, grid = plt.subplots(1, len(drawings), figsize=size, squeeze=False)
            panels = list(grid[0])
        else:
            panels = [axes]
        for panel, drawing in zip(panels, drawings, strict=True):
            drawing.draw(PRINT, panel)
            if len(drawings) > 1:
                panel.set_title(drawing.title, pad=drawing.head)
    return panels[0] if len(drawings) == 1 else np.array(panels)


def _missing(kind: Kind) -> str:
    """Return why there is nothing to draw."""
    if kind == "ranks":
        return (
            f"'ranks' needs three methods with values in {many_methods.FEWEST_BLOCKS} settings or "
            "draws"
        )
    if kind == "time":
        return "no run has devices, so that nothing takes simulated time"
    return f"there is no complete run to draw in {kind!r}"


def _drawings(facts: Facts, kind: Kind, settings: Sequence[StudySetting]) -> list[Drawing]:
    """Return what there is to draw of a kind."""
    if kind == "intervals":
        return many_methods.interval_drawings(facts, settings)
    if kind == "ranks":
        panels = many_methods.ranks_by_panel(facts, settings)
        return many_methods.rank_drawings(facts, panels)
    if kind == "settings":
        drawing = many_methods.map_drawing(facts, settings)
        return [] if drawing is None else [drawing]
    frame = FRAMES[kind](facts)
    if kind == "cost":
        frame = frame[frame["whole_bytes"].notna()]
    height = 0.9 + 0.3 * len(facts.methods) if kind == "clients" else 3.4
    return [
        Drawing(facts.short_name(setting), "", (5.2, height), partial(_draw, facts, kind, rows))
        for setting in settings
        if len(rows := rows_of_setting(frame, setting))
    ]


def _draw(facts: Facts, kind: Kind, frame: pd.DataFrame, look: Look, axes: Axes) -> None:
    """Draw a plot of one setting."""
    series, metric = series_of(facts), facts.metric
    if kind in ("curves", "time"):
        across = TIME_LABEL if kind == "time" else "round"
        figures.draw_curves(look, axes, frame, series, metric, across=across)
    elif kind == "clients":
        figures.draw_strips(look, axes, frame, series, metric)
    else:
        figures.draw_against(look, axes, frame, series, metric, "whole_bytes", COST_LABEL)
        axes.xaxis.set_major_formatter(lambda value, _: size(value))
        axes.tick_params(axis="x", labelrotation=30)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize="small")
