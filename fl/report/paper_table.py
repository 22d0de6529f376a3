"""The table that a user composes for a paper: chosen methods, metrics and settings.

It is a frame (`values`) first, so that a data frame, Markdown and LaTeX have the same numbers and
the same entries in bold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import pandas as pd

from fl.base.errors import ConfigError, DataError, Location, unknown_name
from fl.base.schema import SETTING, StudySetting
from fl.base.units import quantity
from fl.report import claims, summaries
from fl.report.cells import NOTHING, Cell, Column, Row, Table, spread, unit
from fl.report.facts import Facts, rows_of_setting
from fl.report.method_tables import best_means, count_of, denial, main_note, test_metrics

Best = Literal["significant", "mean"]
"""Which entries are in bold: those that no other is ahead of, or those with the best mean."""

Names = Sequence[str] | str | None
"""One name, several in the order of the table, or None for all."""

COLUMNS = [*SETTING, "method", "title", "metric", "mean", "sd", "n", "best"]
"""Columns of `values`."""


def values(
    facts: Facts,
    methods: Names = None,
    metrics: Names = None,
    settings: Names = None,
    best: Best | None = "significant",
) -> pd.DataFrame:
    """Return a row for each setting, method and metric, in the order in which they are named.

    Args:
        facts: The study; its draws are merged here.
        methods: Names of entries, or their titles; by default all.
        metrics: Metrics on test samples; by default the study's.
        settings: Names of settings as the report's tables have them, or texts or titles of data
            sets, partitions and models, each of which stands for all settings that have it.
        best: Which entries are marked; None: none.

    Returns:
        `COLUMNS`: ``mean`` and ``sd`` over ``n`` draws or seeds, shares as fractions of one, and
        whether an entry is marked as ``best``: by tests among all entries of the study, by means
        among those of the table.

    Raises:
        ConfigError: For a name that the study does not have, and an empty list.
        DataError: If no run is complete.
    """
    facts = facts.merged_draws or facts
    place = Location(f"the study {facts.plan.study}")
    if best is not None and best not in get_args(Best):
        raise unknown_name(place, "value of best", best, [*get_args(Best), "None"])
    chosen_methods, chosen_metrics, chosen_settings = chosen(facts, methods, metrics, settings)
    rows: list[tuple[Any, ...]] = []
    for metric in chosen_metrics:
        summary = facts.summary if metric == facts.metric else facts.summarise(metric)
        shown = summary[summary["method"].isin(chosen_methods)]
        marked = _marked(facts, metric, shown if best == "mean" else summary, best)
        by_key = {(*(row[k] for k in summaries.KEY),): row for row in summary.to_dict("records")}
        for setting in chosen_settings:
            for method in chosen_methods:
                key = (*setting, method)
                row = by_key.get(key, {"mean": math.nan, "sd_seeds": math.nan, "n_seeds": 0})
                numbers = (row["mean"], row["sd_seeds"], row["n_seeds"])
                rows.append((*key, facts.methods[method], metric, *numbers, key in marked))
    return pd.DataFrame(rows, columns=COLUMNS)


def chosen(
    facts: Facts, methods: Names, metrics: Names, settings: Names
) -> tuple[list[str], list[str], list[StudySetting]]:
    """Return the methods, metrics and settings that names stand for, see `values`.

    Raises:
        ConfigError: For a name that the study does not have, and an empty list.
        DataError: If no run is complete.
    """
    place = Location(f"the study {facts.plan.study}")
    entries = {method: [method] for method in facts.methods}
    titles = dict(zip(facts.runs["title"], facts.runs["method"], strict=True))
    for name, method in [*titles.items(), *((t, m) for m, t in facts.methods.items())]:
        entries.setdefault(name, [method])
    recorded = {metric: [metric] for metric in test_metrics(facts)}
    if not recorded or facts.summary["mean"].isna().all():
        raise DataError(f"{place}: no run is complete, so that nothing is shown", advice="run it")
    return (
        _chosen(place, "method", methods, entries, [*facts.methods]),
        _chosen(place, "metric", metrics, recorded, [facts.metric]),
        _chosen(place, "setting", settings, _settings(facts), facts.settings),
    )


def _settings(facts: Facts) -> dict[str, list[StudySetting]]:
    """Return the settings by each name that a user may give."""
    named: dict[str, list[StudySetting]] = {facts.short_name(s): [s] for s in facts.settings}
    own_names = set(named)
    for setting in facts.settings:
        pairs = zip(SETTING, setting, strict=True)
        titles = (facts.plan.titles.get(key, {}).get(text, text) for key, text in pairs)
        for name in dict.fromkeys((facts.plan.setting_title(*setting), *setting, *titles)):
            if name not in own_names:
                named.setdefault(name, []).append(setting)
    return named


def _chosen(
    place: Location, kind: str, names: Names, items: Mapping[str, Sequence[Any]], default: list[Any]
) -> list[Any]:
    """Return what names stand for, each once; the default without names."""
    if names is None:
        return default
    names = [names] if isinstance(names, str) else [*names]
    if not names:
        problem = f"is an empty list of {kind}s"
        raise ConfigError(place / f"{kind}s", problem, advice=f"leave {kind}s= out for the default")
    for name in names:
        if name not in items:
            raise unknown_name(place, kind, name, items)
    return list(dict.fromkeys(item for name in names for item in items[name]))


def _marked(
    facts: Facts, metric: str, summary: pd.DataFrame, best: Best | None
) -> set[tuple[str, ...]]:
    if best is None or len(facts.methods) < 2:
        return set()
    if best == "mean":
        return best_means(summary, metric)
    return claims.leaders(facts.claims_on(metric), summary, facts.plan.baseline)


def table(facts: Facts, frame: pd.DataFrame, best: Best | None = "significant") -> Table:
    """Return `values` as a table with a caption.

    A single metric has a column for each setting, several have a column each and a group of rows
    for each setting.

    Args:
        facts: The study.
        frame: Its `values`.
        best: Which entries are marked in it.
    """
    facts = facts.merged_draws or facts
    metrics = [*frame["metric"].unique()]
    settings = [*frame[SETTING].drop_duplicates().itertuples(index=False, name=None)]
    by_key = {
        (*(row[k] for k in (*summaries.KEY, "metric")),): row for row in frame.to_dict("records")
    }
    tables = {m: facts.summary if m == facts.metric else facts.summarise(m) for m in metrics}
    gaps = {
        (*(row[key] for key in summaries.KEY), metric): summaries.gaps(row)
        for metric, summary in tables.items()
        for row in summary.to_dict("records")
    }

    def cell(setting: StudySetting, method: str, metric: str) -> Cell:
        key = (*setting, method, metric)
        row = by_key[key]
        has_mean = not math.isnan(row["mean"])
        text = spread(row["mean"], row["sd"], metric) if has_mean else NOTHING
        return Cell(text, best=bool(row["best"]), remark=gaps.get(key, ""))

    titles = dict(zip(frame["method"], frame["title"], strict=True))
    several, rows = len(metrics) > 1, list[Row]()
    for setting in settings if several else [()]:
        if several and len(settings) > 1:
            rows.append(Row(facts.short_name(setting), kind="heading"))
        places = [(setting, m) for m in metrics] if several else [(s, metrics[0]) for s in settings]
        rows += [Row(t, tuple(cell(s, m, k) for s, k in places)) for m, t in titles.items()]
    heads = (
        [unit(m) for m in metrics]
        if several
        else ["\n".join(facts.names.distinct[s]) for s in settings]
    )
    columns = (Column("Method", True), *map(Column, heads))
    part = facts.in_settings(settings)
    tables = {m: s[pd.MultiIndex.from_frame(s[SETTING]).isin(settings)] for m, s in tables.items()}
    notes = [main_note(part, metric, summary) for metric, summary in tables.items()]
    if several and len(settings) == 1:
        notes.append(f"Setting: {facts.short_name(settings[0])}.")
    note = " ".join(dict.fromkeys(filter(None, notes)))
    text = caption(facts, metrics, tables[metrics[0]], best, titles)
    return Table("results", text, columns, tuple(rows), note=note, scope=part.common_note)


def point_lines(facts: Facts, methods: Names, settings: Names) -> Iterator[str]:
    """Yield the chosen points of methods with a grid, a line for each method and setting."""
    facts = facts.merged_draws or facts
    chosen_methods, _, chosen_settings = chosen(facts, methods, None, settings)
    runs = facts.with_settings(summaries.stored_runs(facts.runs))
    for setting in chosen_settings:
        of_setting = rows_of_setting(runs, setting)
        for method in chosen_methods:
            counts = of_setting.loc[of_setting["method"] == method, "point"].value_counts()
            runs_text = quantity(int(counts.sum()), "run")
            shares = {point: f" ({n} of {runs_text})" for point, n in counts.items() if point}
            texts = [f"{point}{share * (len(counts) > 1)}" for point, share in shares.items()]
            if texts:
                yield f"{facts.methods[method]}, {facts.short_name(setting)}: {', '.join(texts)}"


def caption(
    facts: Facts,
    metrics: Sequence[str],
    summary: pd.DataFrame,
    best: Best | None,
    shown: Iterable[str],
) -> str:
    """Return sentences on what the numbers are, which of them are in bold, and by which test."""
    named = f"test {unit(metrics[0])}" if len(metrics) == 1 else "values on test samples"
    of = f"Final {named}: mean over clients, then mean ± standard deviation over "
    of += f"{count_of(facts, summary)}."
    if best is None or len(facts.methods) < 2:
        return of
    if best == "mean":
        denied = denial(facts, metrics[0]) if len(metrics) == 1 else ""
        is_whole = set(shown) == {*facts.methods}
        among = "" if is_whole else " among these methods"
        return f"{of} Bold: the best mean of each setting{among}{denied}."
    frames = [facts.claims_on(metric) for metric in metrics]
    frame = pd.concat(frames)
    tests = frame[claims.is_testable(frame)]
    if tests.empty:
        units = int(frame["n"].max()) if len(frame) else 0
        why = "no comparison could be tested"
        if claims.smallest_p(units) > claims.LEVEL:
            why = f"{quantity(units, facts.replicates[:-1])} cannot show a difference"
        return f"{of} Nothing is in bold: {why}."
    counts = [int(claims.is_testable(tests_by).sum()) for tests_by in frames]
    family = f"the {counts[0]} comparisons of the study"
    if len(metrics) > 1:
        families = (f"{n} by {m.replace('_', ' ')}" for n, m in zip(counts, metrics, strict=True))
        family = f"all comparisons by one metric ({', '.join(families)})"
    bold = "no other method is ahead"
    if facts.plan.baseline in facts.methods:
        title = facts.methods[facts.plan.baseline]
        bold = f"ahead of {title}, the baseline; where none is, all that {title} is not ahead of"
    equal = int((tests["p_equal"] <= claims.LEVEL).sum())
    text = f"{of} Bold: {bold}. Test: {claims.test_rule(tests)}, at {100 * claims.LEVEL:g} %, "
    text += f"corrected for {family} by step-down maxT"
    if tests["p_equal"].notna().any():
        text += f"; {equal or 'none'} of them are equal within {100 * claims.MARGIN:g} point, by "
        text += "two one-sided tests"
    return f"{text}."
