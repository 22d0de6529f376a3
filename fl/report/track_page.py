"""Published tracks in tables and figures: a ranking of each, an overview, and a method on all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fl.base.units import operations, quantity, size
from fl.blocks.plotting import PRINT, Look, Picture, as_picture, axes_of, panels_of
from fl.report import claims, tracks
from fl.report.cells import (
    NOTHING,
    Cell,
    Column,
    Row,
    Table,
    columns,
    multiple,
    number,
    probability,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


CONTROLS = ("local", tracks.CHECK, tracks.BASELINE)
"""Entries that are no method of their own, which tables mark."""
COST_LABELS = {"bytes": "bytes, all clients", "operations": "operations, all clients"}
UNITS = {"bytes": size, "operations": operations}
LIMITS = (1, 2, 10)
"""Multiples of the costs of `tracks.BASELINE` within which `budgets` ranks methods."""
LISTED = 3
"""Number of methods that `budgets` lists within a limit."""

RANKING = (
    *("rank", "accuracy", "from", "difference", "corrected\np", "verdict"),
    *("equal within\n1 point", "worst\ntenth", "bytes", "ops"),
)
"""Columns of `ranking`."""


def marked_titles(table: pd.DataFrame) -> dict[str, str]:
    """Return titles by entry; controls are marked."""
    titles = _plain_titles(table).items()
    return {method: f"{t} (control)" if method in CONTROLS else t for method, t in titles}


def ranking(table: pd.DataFrame, tests: pd.DataFrame, track: str) -> Table:
    """Return the methods of a track by mean rank, with intervals, tests and costs.

    Args:
        table: Results of all tracks, `tracks.COLUMNS`.
        tests: Their comparisons, of `tracks.compare_with_baselines`.
        track: The track.
    """
    lines, scores = table[table["track"] == track], tracks.scores_of(table, track)
    judged = {row["method"]: row for row in tests[tests["track"] == track].to_dict("records")}
    named, places = marked_titles(lines), tracks.ranks(scores).sort_values(kind="stable")
    averages = lines.groupby("method")[["accuracy", "worst_tenth", *COST_LABELS]].mean().to_dict()
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
            *(UNITS[cost](averages[cost][method]) for cost in COST_LABELS),
        ]
        rows.append(Row(named[method], tuple(map(Cell, cells))))
    caption = (
        f"Accuracy (%) over {len(scores)} draws with 95 % bootstrap interval, sorted by mean rank."
    )
    note = (
        f"{_rule(table, tests)} Equal: the mean is within one point of 0, by two one-sided tests, "
        "corrected likewise. Worst tenth: of clients. Bytes and operations: of a whole run."
    )
    heads = columns("Method", *RANKING, text=("from", "verdict"))
    return Table(track, caption, heads, tuple(rows), note=note)


def _rule(table: pd.DataFrame, tests: pd.DataFrame) -> str:
    """Return the sentences on what is compared with what, and how it is corrected."""
    named = marked_titles(table)
    is_test = tests["reason"] == ""
    counts = tests[is_test].groupby("family", sort=False).size()
    families = " and ".join(f"the {n} comparisons with {named[str(f)]}" for f, n in counts.items())
    rule = claims.flip_rule(int(tests["n"].max())) if len(tests) else "sign-flip test"
    scope = "all tracks" if table["track"].nunique() > 1 else "the track"
    return (
        f"Personalised methods are compared with {named.get(tracks.BASELINE, tracks.BASELINE)}, "
        f"methods with a shared model with {named.get(tracks.CHECK, tracks.CHECK)}: {rule}, "
        f"corrected by step-down maxT within {families or 'no comparison'} of {scope}."
    )


def _tested(row: Mapping[Any, Any] | None, table: pd.DataFrame) -> tuple[str, ...]:
    """Return baseline, difference with interval, corrected p, verdict and equality as texts."""
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


def long_table(table: pd.DataFrame, tests: pd.DataFrame) -> Table:
    """Return a row for each method of each track, for pages on which readers sort and filter.

    Costs are multiples of those of FedAvg on the track, so that tracks can be compared.

    Args:
        table: Results of all tracks, `tracks.COLUMNS`.
        tests: Their comparisons, of `tracks.compare_with_baselines`.
    """
    plain, baseline_of = _plain_titles(table), tracks.baselines(table)
    judged = {(row["track"], row["method"]): row for row in tests.to_dict("records")}
    rows = []
    for track in map(str, table["track"].unique()):
        lines, scores = table[table["track"] == track], tracks.scores_of(table, track)
        places = tracks.ranks(scores).sort_values(kind="stable")
        averages = lines.groupby("method")[["worst_tenth", *COST_LABELS]].mean()
        shares = (averages / averages.reindex([tracks.CHECK]).iloc[0]).to_dict()
        worst_tenths = averages["worst_tenth"].to_dict()
        for method in map(str, places.index):
            row = judged.get((track, method))
            # A baseline of its own is of the family that is compared with it.
            family = baseline_of.get(method, tracks.BASELINE)
            cells = [
                track,
                plain[family],
                number(scores[method].mean(), "accuracy"),
                f"{places[method]:.1f}",
                number(row["difference"], "accuracy", signed=True) if row else NOTHING,
                probability(row["p_corrected"]) if row else NOTHING,
                claims.verdict_text(row) if row else NOTHING,
                number(worst_tenths[method], "accuracy"),
                *(multiple(shares[cost][method]) for cost in COST_LABELS),
            ]
            rows.append(Row(marked_titles(lines)[method], tuple(map(Cell, cells))))
    caption = (
        "All methods of all tracks: accuracy (%), mean rank over draws, mean difference in points "
        "from the entry that names the family, and costs of a whole run as multiples of FedAvg's."
    )
    names = ("track", "family", "accuracy", "rank", "difference", "corrected\np")
    heads = columns(
        *("Method", *names, "verdict", "worst\ntenth", "bytes", "operations"),
        text=("track", "family", "verdict"),
    )
    return Table("long", caption, heads, tuple(rows), note=_rule(table, tests))


def _plain_titles(table: pd.DataFrame) -> dict[str, str]:
    return dict(zip(table["method"], table["title"], strict=True))


def overview(table: pd.DataFrame, tests: pd.DataFrame) -> Table:
    """Return each method's mean difference from its baseline by track, bold if it is ahead.

    Args:
        table: Results of all tracks, `tracks.COLUMNS`.
        tests: Their comparisons, of `tracks.compare_with_baselines`.
    """
    named, plain = marked_titles(table), _plain_titles(table)
    order = [str(track) for track in table["track"].unique()]
    by_key = {(r["method"], r["track"]): r for r in tests.to_dict("records")}
    over_tracks, baseline_of = tracks.sign_tests(tests), tracks.baselines(table)

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
                Cell(plain[baseline_of[method]]),
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
        f"{_rule(table, tests)} Sorted by mean rank, first the methods that are in all tracks. "
        "Above: tracks whose mean difference is above 0, of those with a difference; with the sign "
        f"test over tracks, corrected likewise. Its smallest p of {len(order)} tracks is "
        f"{claims.smallest_p(len(order)):.2g}."
    )
    heads = columns("Method", "from", *order, "above", "sign\ntest", text=("from",))
    return Table("overview", caption, heads, rows, note=note)


def budgets(table: pd.DataFrame) -> Table:
    """Return the best methods of each track within multiples of `tracks.BASELINE`'s costs.

    Args:
        table: Results of the tracks, `tracks.COLUMNS`.
    """
    named, baseline = _plain_titles(table), tracks.BASELINE
    title = named.get(baseline, baseline)

    def cells(track: str, cost: str, limit: int) -> tuple[Cell, Cell]:
        ranks = tracks.ranks_within(table, track, cost, limit)
        shown = [f"{named[str(method)]} {rank:.1f}" for method, rank in ranks[:LISTED].items()]
        text = f"{', '.join(shown)}; {title} {ranks[baseline]:.1f}" if shown else NOTHING
        return Cell(str(len(ranks))), Cell(text)

    rows = tuple(
        Row(
            track,
            (Cell(str(limit)), *cells(track, "operations", limit), *cells(track, "bytes", limit)),
        )
        for track in map(str, table["track"].unique())
        for limit in LIMITS
    )
    caption = (
        f"The lowest mean ranks among methods whose whole run costs at most a multiple of "
        f"{title}'s, ranked among themselves; after the semicolon that of {title}."
    )
    note = (
        "Methods: the number within the limit; one per cent more is within it. Ranks are of "
        "accuracies at the end of whole runs, personalised and shared models together. A method "
        "that costs more is left out, not stopped earlier or given fewer steps, and rates were "
        "chosen for whole runs. A mean rank is no claim: the tables of tracks have the tests."
    )
    heads = (
        Column("Track", text=True),
        Column(f"times\n{title}"),
        Column("methods by\nops"),
        Column("best by ops", text=True),
        Column("methods\nby bytes"),
        Column("best by bytes", text=True),
    )
    return Table("budgets", caption, heads, rows, note=note)


def _in_order(table: pd.DataFrame) -> list[str]:
    """Return all methods but the first baseline, in the order of an overview.

    First come those that are compared with it, then those that are in all tracks, then those with
    the lower mean rank, as a share of the number of methods in each track.
    """
    shares = [
        tracks.ranks(scores) / scores.shape[1]
        for scores in (tracks.scores_of(table, track) for track in table["track"].unique())
    ]
    wide = pd.concat(shares, axis=1)
    baseline_of = tracks.baselines(table)
    frame = pd.DataFrame({"mean": wide.mean(axis=1), "absent": wide.isna().sum(axis=1)})
    frame = frame.loc[[method for method in frame.index if method in baseline_of]]
    frame["family"] = [baseline_of[str(method)] != tracks.BASELINE for method in frame.index]
    return [*map(str, frame.sort_values(["family", "absent", "mean"], kind="stable").index)]


def pictures(table: pd.DataFrame) -> dict[str, Picture]:
    """Return pictures by file name: ranks and costs of each track, and the heat map over all."""
    tests = tracks.compare_with_baselines(table)
    drawn = {"overview": heat_map(table, tests)}
    for track in table["track"].unique():
        lines = table[table["track"] == track]
        drawn[f"{track}-ranks"] = rank_picture(table, tests, track)
        for cost in COST_LABELS:
            drawn[f"{track}-{cost}"] = cost_picture(lines, cost)
    return drawn


@as_picture
def rank_picture(look: Look, table: pd.DataFrame, tests: pd.DataFrame, track: str) -> Figure:
    """Draw mean ranks, in colour where a method is ahead of its baseline or behind it."""
    scores, named = tracks.scores_of(table, track), marked_titles(table)
    places = tracks.ranks(scores).sort_values(ascending=False, kind="stable")
    verdicts = dict(tests.loc[tests["track"] == track, ["method", "verdict"]].to_numpy())
    colours = {claims.AHEAD: look.colour(0), claims.BEHIND: look.colour(1)}
    figure, axes = axes_of(0.8 + 0.13 * len(places))
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
    return figure


@as_picture
def cost_picture(look: Look, lines: pd.DataFrame, cost: str) -> Figure:
    """Draw accuracy against a cost, with the Pareto front."""
    averages = lines.groupby("method", sort=False)[["accuracy", cost]].mean()
    best, named = tracks.pareto_front(lines, cost), marked_titles(lines)
    figure, axes = axes_of(2.6)
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
    axes.set(xlabel=COST_LABELS[cost], ylabel="accuracy (%)", ylim=(low, None))
    axes.grid(axis="y")
    return figure


@as_picture
def heat_map(look: Look, table: pd.DataFrame, tests: pd.DataFrame) -> Figure:
    """Draw mean differences from baselines, methods by tracks, with a dot if it is significant.

    Methods that are compared with the same baseline have a panel. Rows of all panels are equally
    high.
    """
    named, plain = marked_titles(table), _plain_titles(table)
    order, baseline_of = [*map(str, table["track"].unique())], tracks.baselines(table)
    panels: dict[str, list[str]] = {}
    for method in _in_order(table):
        panels.setdefault(baseline_of[method], []).append(method)
    differences = 100 * tests.pivot(index="method", columns="track", values="difference")
    significant = {
        (row["method"], row["track"])
        for row in tests.to_dict("records")
        if row["verdict"] in (claims.AHEAD, claims.BEHIND)
    }
    height = max(map(len, panels.values()))
    figure, all_axes = panels_of(len(panels), 1.4 + 0.15 * height)
    limit = 10.0
    for axes, (baseline, methods) in zip(all_axes, panels.items(), strict=True):
        values = differences.reindex(index=methods, columns=order).to_numpy(float)
        image = axes.imshow(values, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
        for i, method in enumerate(methods):
            for j, track in enumerate(order):
                if np.isnan(values[i, j]):
                    text = axes.text(j, i, NOTHING, fontsize=6, color=look.muted)
                    text.set(ha="center", va="center")
                if (method, track) in significant:
                    # A page does not change the colours of cells.
                    dark = abs(values[i, j]) > limit / 2
                    axes.plot(j, i, ".", ms=4, color="white" if dark else "black")
        axes.set_ylim(height - 0.5, -0.5)
        axes.set_yticks(range(len(methods)), [named[method] for method in methods], fontsize=7.5)
        axes.set_xticks(range(len(order)), order, rotation=40, ha="left", rotation_mode="anchor")
        axes.tick_params(length=0, top=False, bottom=False, labeltop=True, labelbottom=False)
        axes.spines[:].set_visible(False)
        axes.set_title(f"from {plain[baseline]}", loc="left", fontsize=9.5)
    keys = f"difference in points; with a dot: significant; {NOTHING} not in the track"
    bar = figure.colorbar(
        image, ax=all_axes, location="bottom", shrink=0.5, aspect=40, pad=0.01, extend="both"
    )
    bar.ax.set_title(keys, fontsize=8.5)
    return figure


def method_table(lines: pd.DataFrame, tests: pd.DataFrame, method: str) -> Table:
    """Return a table of a method, a row for each track.

    Args:
        lines: Results of all methods, `tracks.COLUMNS`.
        tests: Their comparisons, of `tracks.compare_with_baselines`.
        method: The method.
    """
    test_by_track = {r["track"]: r for r in tests[tests["method"] == method].to_dict("records")}
    titles = _plain_titles(lines)
    rows = []
    for track in map(str, lines["track"].unique()):
        scores = tracks.scores_of(lines, track)
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
        f"{titles.get(method, method)} on {quantity(len(rows), 'track')}: accuracy (%), place by "
        "mean rank, and difference in points with 95 % bootstrap interval."
    )
    heads = columns(
        *("Track", "accuracy", "place", "difference", "from", "corrected\np", "verdict"),
        text=("from", "verdict"),
    )
    return Table("tracks", caption, heads, tuple(rows), note=_rule(lines, tests), is_main=True)


def plot_method(
    lines: pd.DataFrame, tests: pd.DataFrame, method: str, axes: Axes | None = None
) -> Axes:
    """Draw by track a method's difference from its baseline, with the others in grey.

    Args:
        lines: Results of all methods, `tracks.COLUMNS`.
        tests: Their comparisons, of `tracks.compare_with_baselines`.
        method: The method.
        axes: Where to draw; by default the axes of a new figure of pyplot.
    """
    import matplotlib
    import matplotlib.pyplot as plt

    own_tests = tests[tests["method"] == method]
    other_tests = tests[tests["family"].isin(own_tests["family"]) & (tests["method"] != method)]
    order = [*map(str, lines["track"].unique())]
    titles = _plain_titles(lines)
    with matplotlib.rc_context(PRINT.style()):
        if axes is None:
            _, axes = plt.subplots(figsize=(5.2, 1.1 + 0.35 * len(order)))
        heights = other_tests["track"].map(order.index)
        label = "other methods of the family"
        axes.plot(
            100 * other_tests["difference"], heights, "|", ms=8, color=PRINT.muted, label=label
        )
        places = own_tests["track"].map(order.index).to_numpy()
        middle, low, high = (
            100 * own_tests[key].to_numpy() for key in ("difference", "low", "high")
        )
        is_claim = own_tests["verdict"].isin((claims.AHEAD, claims.BEHIND)).to_numpy()
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
        baselines = " and ".join(titles[str(baseline)] for baseline in own_tests["other"].unique())
        axes.set_xlabel(f"difference of accuracy from {baselines or 'a baseline'} (points)")
        axes.grid(axis="x")
        axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, fontsize=7)
    return axes
