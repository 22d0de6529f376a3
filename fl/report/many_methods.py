"""Figures that compare many methods: intervals, a map of settings, and mean ranks.

A report has them if it has `FEWEST_METHODS`; `fl.Result.plot` draws them for any number.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.special import fdtrc

from fl.base.schema import SETTING, SHARES, StudySetting, rising
from fl.blocks.plotting import FIGURE_WIDTH, Look, Picture, axes_of
from fl.report import claims, summaries
from fl.report.cells import number, probability, unit
from fl.report.facts import Facts, rows_of_setting
from fl.report.figures import DASHED, Figure, Panel
from fl.report.summaries import KEY

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

FEWEST_METHODS = 8
"""Smallest number of methods for which a report has these figures."""
FEWEST_SETTINGS = 3
"""Smallest number of settings of a map in a report."""
FEWEST_BLOCKS = 5
"""Smallest number of settings or draws over which ranks are averaged."""
NAME_WIDTH, NAME_LINES = 26, 3
"""Characters of a line of a method's name, and largest number of its lines."""
LINE_HEIGHT = 0.135
"""Height in inches of a line of a name."""

STYLES = {
    claims.AHEAD: (0, "^"),
    claims.BEHIND: (1, "v"),
    claims.OPEN: (None, "o"),
    claims.UNINFORMATIVE: (None, "s"),
    "": (None, "D"),
}
"""Number of the colour and marker of each verdict; of no verdict for what is compared with."""


@dataclass(frozen=True)
class Drawing:
    """A panel that can be drawn on a page, in a file and on a user's axes.

    Attributes:
        title: Its title.
        alt: Its description for readers who do not see it.
        size: Its width and height in inches.
        draw: Draws it.
        head: Points above the axes that it uses.
    """

    title: str
    alt: str
    size: tuple[float, float]
    draw: Callable[[Look, Axes], None]
    head: float = 6.0

    def panel(self) -> Panel:
        """Return the panel of a report."""

        def drawn(look: Look) -> matplotlib.figure.Figure:
            figure, axes = axes_of(self.size[1])
            figure.set_figwidth(self.size[0])
            self.draw(look, axes)
            return figure

        return Panel(self.title, f"{self.title}: {self.alt}", Picture(drawn))


def unit_values(facts: Facts) -> pd.DataFrame:
    """Return the final ``value`` of each ``unit``, a draw or seed, by setting and method.

    It is a mean over clients, and over the seeds of a draw.
    """
    final = summaries.final_rows(facts.rows, facts.metric)
    rows = summaries.complete_rows(final, facts.runs)
    values = rows.groupby([*KEY, "seed"], sort=False)["value"].mean().reset_index()
    by_unit = facts.with_units(values).groupby([*KEY, "unit"], sort=False)["value"]
    return by_unit.mean().reset_index()


def interval_drawings(facts: Facts, settings: Sequence[StudySetting]) -> list[Drawing]:
    """Return the means of all methods with their intervals, sorted, a drawing for each setting."""
    values = unit_values(facts)
    drawings = []
    for setting in settings:
        rows = rows_of_setting(values, setting)
        if rows.empty:
            continue
        units = rows.groupby("method", sort=False)["value"].agg(tuple)
        means = units.map(np.mean).sort_values(ascending=not rising(facts.metric), kind="stable")
        verdicts = _verdicts(facts, setting, str(means.index[0]))
        titles = [facts.methods[str(method)] for method in means.index]
        names = [_name(title) for title in titles]
        kinds = [verdicts.get(str(method), claims.UNINFORMATIVE) for method in means.index]
        ordered = [units[method] for method in means.index]
        alt = f"means from {number(means.iloc[0], facts.metric)} ({titles[0]}) to "
        alt += f"{number(means.iloc[-1], facts.metric)} ({titles[-1]})."
        draw = partial(_draw_intervals, facts, names, kinds, ordered)
        size = (FIGURE_WIDTH, 0.75 + _height(names))
        drawings.append(Drawing(facts.short_name(setting), alt, size, draw, 18.0))
    return drawings


def _verdicts(facts: Facts, setting: StudySetting, best: str) -> dict[str, str]:
    """Return the verdict of each method against the baseline, or against the best method.

    What it is compared with has an empty one, and what is not tested has none.
    """
    tested = facts.claims[claims.is_testable(facts.claims)]
    rows = rows_of_setting(tested, setting).to_dict("records")
    baseline = facts.plan.baseline if facts.plan.baseline in facts.methods else None
    if baseline is not None:
        verdicts = {row["method"]: row["verdict"] for row in rows if row["other"] == baseline}
        return verdicts | {baseline: ""}
    verdicts = {best: ""}
    for row in rows:
        pair = {row["method"], row["other"]}
        if best in pair:
            is_claim = row["verdict"] in (claims.AHEAD, claims.BEHIND)
            verdicts[(pair - {best}).pop()] = claims.BEHIND if is_claim else row["verdict"]
    return verdicts


def _name(title: str) -> str:
    """Return a method's title in a few lines."""
    lines = textwrap.wrap(title, NAME_WIDTH, max_lines=NAME_LINES, placeholder=" …")
    return "\n".join(lines) or title


def _heights(names: Sequence[str]) -> np.ndarray:
    """Return the heights of rows with these names, in lines."""
    return np.array([1.35 + name.count("\n") for name in names])


def _height(names: Sequence[str]) -> float:
    """Return the height of all rows in inches."""
    return LINE_HEIGHT * float(_heights(names).sum())


def _rows(axes: Axes, names: Sequence[str]) -> np.ndarray:
    """Label the rows of axes with names, of one line or more; return the places of the rows."""
    heights = _heights(names)
    places = np.cumsum(heights) - heights / 2
    axes.set_yticks(places, names, fontsize=7)
    axes.set_ylim(heights.sum(), 0)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return places


def _draw_intervals(
    facts: Facts,
    names: list[str],
    kinds: list[str],
    ordered: list[tuple[float, ...]],
    look: Look,
    axes: Axes,
) -> None:
    """Draw a row for each method: its draws or seeds, the interval of their mean, and the mean."""
    scale, places = 100 if facts.metric in SHARES else 1, _rows(axes, names)
    is_against_best = facts.plan.baseline not in facts.methods
    labels = {claims.UNINFORMATIVE: "not tested", "": "best" if is_against_best else "baseline"}
    labelled: set[str] = set()
    for place, kind, units in zip(places, kinds, ordered, strict=True):
        colour, marker = STYLES[kind]
        ink = look.ink if kind == "" else look.muted if colour is None else look.colour(colour)
        values = scale * np.array(units)
        axes.plot(values, [place] * len(values), ".", ms=3, color=ink, alpha=0.4, mew=0)
        low, high = claims.interval(units)
        if math.isfinite(low):
            axes.plot([scale * low, scale * high], [place] * 2, color=ink, lw=1.4)
        label = "_" if kind in labelled else labels.get(kind, kind)
        filled = look.paper if kind in (claims.OPEN, claims.UNINFORMATIVE) else ink
        axes.plot(
            *(values.mean(), place), marker, ms=4.5, color=ink, mfc=filled, ls="", label=label
        )
        labelled.add(kind)
        if kind == "":
            axes.axvline(values.mean(), color=look.muted, lw=0.8, ls=DASHED, zorder=0)
    axes.set_xlabel(unit(facts.metric))
    axes.grid(axis="x")
    handles = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    order = [label for kind in STYLES if (label := labels.get(kind, kind)) in handles]
    axes.legend(
        [handles[label] for label in order],
        order,
        fontsize=6.5,
        frameon=False,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=5,
        columnspacing=0.6,
        handletextpad=0.1,
        borderpad=0,
    )


def intervals(facts: Facts) -> Figure | None:
    """Return the figure of all methods' intervals; None without results."""
    panels = tuple(d.panel() for d in interval_drawings(facts, facts.settings))
    if not panels:
        return None
    baseline = facts.plan.baseline
    against = "Ahead, behind: of " + facts.methods.get(baseline or "", "")
    if baseline not in facts.methods:
        against = "Behind: of the best method"
    interval = ", its 95 % bootstrap interval (line)"
    tests = f" {against}, by the report's tests."
    note = "Intervals of two methods may overlap where one is ahead: tests are of the differences."
    if claims.smallest_p(int(facts.summary["n_seeds"].max())) > claims.LEVEL:
        interval = tests = ""
        note = f"There are too few {facts.replicates} for intervals and verdicts."
    caption = (
        f"Final test {unit(facts.metric)} of all methods, sorted: mean{interval} and "
        f"{facts.replicates} (dots).{tests}"
    )
    return Figure("intervals", caption, panels, note=note)


def map_drawing(facts: Facts, settings: Sequence[StudySetting]) -> Drawing | None:
    """Return the map of methods by settings; None without values.

    Values are differences from the baseline, or from the mean over all methods. The best row is
    that with the best mean over settings.
    """
    metric, baseline = facts.metric, facts.plan.baseline
    means = facts.summary.pivot_table("mean", SETTING, "method", dropna=False, observed=True)
    means = means.reindex(index=pd.MultiIndex.from_tuples(settings, names=SETTING))
    if baseline in facts.methods:
        source = facts.methods[str(baseline)]
        differences = means.sub(means[baseline], axis=0).drop(columns=baseline)
        is_claim = facts.claims["verdict"].isin((claims.AHEAD, claims.BEHIND))
        is_claim &= facts.claims["other"] == baseline
        bold = {*facts.claims.loc[is_claim, KEY].itertuples(index=False, name=None)}
    else:
        source = "the mean over methods"
        differences = means.sub(means.mean(axis=1), axis=0)
        bold = claims.leaders(facts.claims, facts.summary, baseline)
    differences = differences.dropna(axis=1, how="all")
    if differences.empty:
        return None
    order = differences.mean().sort_values(ascending=not rising(metric), kind="stable").index
    table = differences[order].T
    names = [_name(facts.methods[str(method)]) for method in order]
    heads = ["\n".join(textwrap.wrap(facts.short_name(s), 20)) for s in settings]
    key = f"{unit(metric)}: difference from {source}; blue: better, red: worse"
    draw = partial(_draw_map, table, names, heads, bold, metric, key)
    alt = f"{len(names)} methods by {len(heads)} settings; {facts.methods[str(order[0])]} has the "
    alt += "best mean."
    width = float(np.clip(2.2 + 0.45 * len(heads), FIGURE_WIDTH, 8.6))
    return Drawing("All settings", alt, (width, 1.3 + 1.15 * _height(names)), draw)


def _draw_map(
    table: pd.DataFrame,
    names: list[str],
    heads: list[str],
    bold: set[tuple[str, ...]],
    metric: str,
    key: str,
    look: Look,
    axes: Axes,
) -> None:
    """Draw differences, methods by settings, as coloured cells with numbers, above their key."""
    import matplotlib

    values = table.to_numpy(float) * (1 if rising(metric) else -1)
    limit = max(float(np.nanquantile(np.abs(values), 0.9)), 1e-12)
    colours = matplotlib.colormaps["RdBu"]
    places, heights = _rows(axes, names), _heights(names)
    shade = colours(0.5 + 0.5 * np.clip(np.nan_to_num(values) / limit, -1, 1))
    for i, (method, row) in enumerate(table.iterrows()):
        for j, setting in enumerate(table.columns):
            if not math.isfinite(values[i, j]):
                axes.text(j, places[i], "–", ha="center", va="center", fontsize=6.5)  # noqa: RUF001
                continue
            corner = j - 0.5, places[i] - heights[i] / 2
            cell = matplotlib.patches.Rectangle(
                corner, 1, heights[i], facecolor=shade[i, j], edgecolor=look.paper
            )
            axes.add_patch(cell)
            is_dark = abs(values[i, j]) > 0.55 * limit
            axes.text(
                *(j, places[i], number(row.iloc[j], metric, signed=True)),
                ha="center",
                va="center",
                fontsize=6.5,
                # A page does not change the colours of cells.
                color="white" if is_dark else "black",
                weight="bold" if (*setting, method) in bold else "normal",
            )
    axes.set_xlabel("\n".join(textwrap.wrap(key, 45)), fontsize=6.5)
    axes.set_xlim(-0.5, len(heads) - 0.5)
    axes.set_xticks(range(len(heads)), heads, fontsize=7, rotation=35, ha="left")
    for label in axes.get_xticklabels():
        label.set_rotation_mode("anchor")
    axes.tick_params(length=0, top=False, bottom=False, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)


def settings_map(facts: Facts) -> Figure | None:
    """Return the figure of methods by settings; None for fewer than `FEWEST_SETTINGS`."""
    if len(facts.settings) < FEWEST_SETTINGS:
        return None
    drawing = map_drawing(facts, facts.settings)
    if drawing is None:
        return None
    baseline = facts.plan.baseline
    source, rule = "the mean over all methods of the setting", "no other method is ahead"
    if baseline in facts.methods:
        source, rule = facts.methods[baseline], "ahead or behind, by the report's tests"
    points = " in points" if facts.metric in SHARES else ""
    caption = (
        f"Difference{points} of final test {unit(facts.metric)} from {source}, sorted by the mean "
        f"over settings. Blue: better; red: worse. Bold: {rule}."
    )
    return Figure("map", caption, (drawing.panel(),))


@dataclass(frozen=True)
class Ranks:
    """Mean ranks of methods over settings or draws.

    Attributes:
        means: Mean rank by method, the best first.
        count: Number of settings or draws.
        p: p-value of Friedman's test, in the form of Iman and Davenport.
        critical: Critical difference of Nemenyi's test at `claims.LEVEL`.
    """

    means: pd.Series
    count: int
    p: float
    critical: float

    @property
    def groups(self) -> list[tuple[int, int]]:
        """The first and last place of methods that are not told apart, without parts of others.

        All methods are one group if Friedman's test rejects nothing.
        """
        values, last = self.means.to_numpy(), len(self.means) - 1
        if not self.p <= claims.LEVEL:
            return [(0, last)]
        ends = [int(np.flatnonzero(values - value < self.critical)[-1]) for value in values]
        return [(i, end) for i, end in enumerate(ends) if end > i and (i == 0 or end > ends[i - 1])]


def ranks_of(table: pd.DataFrame, metric: str) -> Ranks | None:
    """Return mean ranks; None for fewer than `FEWEST_BLOCKS` rows or three methods.

    The tests are those of Demšar, Statistical Comparisons of Classifiers over Multiple Data Sets,
    JMLR 2006. Methods without any value, and then rows that lack a value, are left out.

    Args:
        table: Values, [settings or draws, methods].
        metric: The metric.
    """
    table = table.dropna(axis=1, how="all").dropna()
    n, k = table.shape
    if n < FEWEST_BLOCKS or k < 3:
        return None
    ranks = table.rank(axis=1, ascending=not rising(metric))
    # Equal values share a rank, which lowers the spread that is expected.
    spread = float(((ranks - (k + 1) / 2) ** 2).to_numpy().sum()) / (n * (k - 1))
    between = n * float(((ranks.mean() - (k + 1) / 2) ** 2).sum())
    chi2 = between / spread if spread else math.nan
    gap = n * (k - 1) - chi2  # 0 if all settings have the same order.
    p = float(fdtrc(k - 1, (k - 1) * (n - 1), (n - 1) * chi2 / gap)) if gap > 1e-9 else 0.0
    from scipy.stats import studentized_range  # A second of imports, where they are needed.

    quantile = float(studentized_range.ppf(1 - claims.LEVEL, k, np.inf)) / math.sqrt(2)
    critical = quantile * math.sqrt(k * (k + 1) / (6 * n))
    means = ranks.mean().sort_values(kind="stable")
    return Ranks(means, n, math.nan if math.isnan(chi2) else p, critical)


def ranks_by_panel(facts: Facts, settings: Sequence[StudySetting]) -> dict[str, Ranks]:
    """Return mean ranks over settings, or else over the draws of each setting, by title.

    Draws of different settings are never ranked together. Seeds of one draw are no blocks, as they
    share its data.
    """
    frame = pd.concat([rows_of_setting(facts.summary, setting) for setting in settings])
    means = frame.pivot_table("mean", SETTING, "method", dropna=True, observed=True)
    over_settings = ranks_of(means, facts.metric)
    if over_settings is not None:
        return {"All settings": over_settings}
    if not facts.over_draws:
        return {}
    values, panels = unit_values(facts), {}
    for setting in settings:
        wide = rows_of_setting(values, setting).pivot(
            index="unit", columns="method", values="value"
        )
        ranks = ranks_of(wide, facts.metric)
        if ranks is not None:
            panels[facts.short_name(setting)] = ranks
    return panels


def rank_drawings(facts: Facts, panels: Mapping[str, Ranks]) -> list[Drawing]:
    """Return the critical-difference diagrams of `ranks_by_panel`."""
    drawings = []
    for title, ranks in panels.items():
        names = [_name(facts.methods[str(method)]) for method in ranks.means.index]
        alt = "; ".join(f"{facts.methods[str(m)]} {rank:.1f}" for m, rank in ranks.means.items())
        size = (FIGURE_WIDTH, 0.95 + _height(names))
        drawings.append(
            Drawing(title, f"mean ranks: {alt}.", size, partial(_draw_ranks, ranks, names), 18.0)
        )
    return drawings


def _draw_ranks(ranks: Ranks, names: list[str], look: Look, axes: Axes) -> None:
    """Draw mean ranks in rows, and a line beside the rows of each group that is not told apart."""
    places, values = _rows(axes, names), ranks.means.to_numpy()
    axes.hlines(places, 1, values, color=look.rule, lw=0.8)
    axes.plot(values, places, "o", ms=4, color=look.colour(0))
    top, k = max(values.max(), 1 + ranks.critical), len(values)
    step = 0.035 * (top - 1)
    groups = ranks.groups
    for i, (first, last) in enumerate(groups, 1):
        ends = [places[first] - 0.4, places[last] + 0.4]
        axes.plot([top + (i + 1) * step] * 2, ends, color=look.ink, lw=2, solid_capstyle="butt")
    axes.set_xlim(1 - step, top + (len(groups) + 2) * step)
    ruler = axes.get_xaxis_transform()
    axes.errorbar(
        *(1 + ranks.critical / 2, 1.0),
        xerr=ranks.critical / 2,
        transform=ruler,
        color=look.ink,
        lw=1,
        capsize=2.5,
        clip_on=False,
    )
    text = f"critical difference {ranks.critical:.2f}"
    axes.text(1, 1.02, text, transform=ruler, fontsize=6.5, va="bottom", color=look.ink)
    ticks = [tick for tick in axes.get_xticks() if 1 <= tick <= k] or [1]
    axes.set_xticks(sorted({1, *ticks}))
    axes.set_xlabel("mean rank")


def critical_differences(facts: Facts) -> Figure | None:
    """Return the critical-difference diagrams; None where their tests have too few settings."""
    panels = ranks_by_panel(facts, facts.settings)
    if not panels:
        return None
    over_settings = [*panels] == ["All settings"]
    counts = sorted({ranks.count for ranks in panels.values()})
    blocks = f"{' or '.join(map(str, counts))} {'settings' if over_settings else 'draws'}"
    caption = (
        f"Critical-difference diagram: mean ranks over {blocks}, 1 is best. A line on the right "
        "joins methods that Nemenyi's test does not tell apart at 5 %."
    )
    ps = ", ".join(
        probability(ranks.p) + (f" ({title})" if len(panels) > 1 else "")
        for title, ranks in panels.items()
    )
    independent = (
        "settings are taken as independent, which those of one data set are not"
        if over_settings
        else "draws of one data set are taken as independent, and say nothing about other data sets"
    )
    note = (
        f"Friedman's test, in Iman and Davenport's form: p {ps}; where it is above 0.05, one line "
        f"joins all. It assumes: {independent}; only the order of methods counts, and all methods "
        "have a value in each. A rank depends on which methods are in the study. Claims are those "
        "of the tables, whose tests are of differences. Demšar, JMLR 2006."
    )
    drawings = rank_drawings(facts, panels)
    return Figure("ranks", caption, tuple(d.panel() for d in drawings), note=note)


def overview(facts: Facts) -> tuple[Figure, ...]:
    """Return the figures of a report; none for fewer than `FEWEST_METHODS`."""
    if len(facts.methods) < FEWEST_METHODS:
        return ()
    figures = (intervals(facts), settings_map(facts), critical_differences(facts))
    return tuple(filter(None, figures))
