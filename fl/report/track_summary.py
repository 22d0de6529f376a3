"""One method beside all others of the tracks: a table for a paper, and a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fl.base.plotting import PRINT
from fl.report import claims, tracks
from fl.report.cells import NOTHING, Cell, Row, Table, columns, number, probability
from fl.report.track_page import rule

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def summary(lines: pd.DataFrame, tests: pd.DataFrame, method: str) -> Table:
    """Return a table of a method, a row for each track.

    Args:
        lines: Results of all methods, `tracks.COLUMNS`.
        tests: Their comparisons, of `tracks.against`.
        method: The method.
    """
    test_by_track = {r["track"]: r for r in tests[tests["method"] == method].to_dict("records")}
    titles = dict(zip(lines["method"], lines["title"], strict=True))
    rows = []
    for track in map(str, lines["track"].unique()):
        scores = tracks.values(lines, track)
        if method not in scores:
            rows.append(Row(track, (Cell(NOTHING),) * 6))
            continue
        ranks = tracks.ranks(scores)
        place = int((ranks < ranks[method]).sum()) + 1
        cells = [number(scores[method].mean(), "accuracy"), f"{place} of {len(ranks)}"]
        test = test_by_track.get(track)
        if test is None:
            cells += [NOTHING] * 4
        else:
            gain, low, high = (
                number(test[key], "accuracy", signed=True) for key in ("difference", "low", "high")
            )
            verdict = claims.verdict_text(test)
            verdict += ", equal within 1 point" if claims.equality_text(test) else ""
            cells += [f"{gain} ({low} to {high})", titles[test["other"]]]
            cells += [probability(test["p_corrected"]), verdict]
        rows.append(Row(track, tuple(map(Cell, cells))))
    caption = (
        f"{titles.get(method, method)} on {len(rows)} tracks: accuracy (%), place by mean rank, "
        "and difference in points with 95 % bootstrap interval."
    )
    heads = columns(
        *("Track", "accuracy", "place", "difference", "from", "corrected\np", "verdict"),
        text=("from", "verdict"),
    )
    return Table("tracks", caption, heads, tuple(rows), note=rule(lines, tests), is_main=True)


def plot(lines: pd.DataFrame, tests: pd.DataFrame, method: str, axes: Axes | None = None) -> Axes:
    """Draw by track a method's difference from its baseline, with the others in grey.

    Args:
        lines: Results of all methods, `tracks.COLUMNS`.
        tests: Their comparisons, of `tracks.against`.
        method: The method.
        axes: Where to draw; by default the axes of a new figure of pyplot.
    """
    import matplotlib
    import matplotlib.pyplot as plt

    own = tests[tests["method"] == method]
    others = tests[tests["family"].isin(own["family"]) & (tests["method"] != method)]
    order = [*map(str, lines["track"].unique())]
    titles = dict(zip(lines["method"], lines["title"], strict=True))
    with matplotlib.rc_context(PRINT.style()):
        if axes is None:
            _, axes = plt.subplots(figsize=(5.2, 1.1 + 0.35 * len(order)))
        heights = others["track"].map(order.index)
        label = "other methods of the family"
        axes.plot(100 * others["difference"], heights, "|", ms=8, color=PRINT.muted, label=label)
        places = own["track"].map(order.index).to_numpy()
        middle, low, high = (100 * own[key].to_numpy() for key in ("difference", "low", "high"))
        is_claim = own["verdict"].isin((claims.AHEAD, claims.BEHIND)).to_numpy()
        colour, name = PRINT.colour(0), titles.get(method, method)
        for shown, filled, text in ((is_claim, True, "a claim"), (~is_claim, False, "no claim")):
            if shown.any():
                axes.errorbar(
                    *(middle[shown], places[shown]),
                    xerr=np.abs(np.stack([low, high]) - middle)[:, shown],
                    fmt="o",
                    ms=5,
                    capsize=2,
                    color=colour,
                    markerfacecolor=colour if filled else PRINT.paper,
                    label=f"{name} ({text})",
                    zorder=3,
                )
        axes.axvline(0, color=PRINT.muted, lw=0.8)
        axes.set_yticks(range(len(order)), order)
        axes.set(ylim=(len(order) - 0.5, -0.5))
        baselines = " and ".join(titles[str(other)] for other in own["other"].unique())
        axes.set_xlabel(f"difference of accuracy from {baselines or 'a baseline'} (points)")
        axes.grid(axis="x")
        axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, fontsize=7)
    return axes
