"""The tables of a report that compare methods by their final values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from fl.analyses.confusion import BINS
from fl.base.schema import (
    BY_CLASS,
    PREDICTED_METRICS,
    REWEIGHTED,
    SETTING,
    UNSEEN,
    StudySetting,
    rising,
)
from fl.report import claims, summaries
from fl.report.cells import (
    NOTHING,
    Cell,
    Column,
    Row,
    Table,
    columns,
    decimal,
    number,
    spread,
    unit,
)
from fl.report.facts import Facts, rows_of_setting, span
from fl.report.plots import mean_ranks

Record = Mapping[Any, Any]
"""Row of a frame that has a row for each setting and method."""
Show = Callable[[Record], str]
"""Function that returns the text of a row's cell."""


def by_setting(
    facts: Facts,
    name: str,
    caption: str,
    frame: pd.DataFrame,
    shown: Mapping[str, Show],
    text: Sequence[str] = (),
    references: Callable[[StudySetting], list[Row]] = lambda setting: [],
    note: str = "",
) -> Table:
    """Return a table with a row for each row of ``frame``, with its method as head, by setting.

    A single setting is named in the note. Numbers are linked to the runs behind them.

    Args:
        facts: The study's facts.
        name: Name of the table in the report's files.
        caption: Caption of the table.
        frame: ``method``, the columns of a setting, and those that ``shown`` reads.
        shown: Functions that return a cell's text, by name of the column.
        text: The columns that hold text.
        references: Rows below those of a setting.
        note: Note below the table.
    """
    names = columns("Method", *shown, text=text)
    order = {method: place for place, method in enumerate(facts.methods)}
    frame = frame.sort_values("method", key=lambda methods: methods.map(order), kind="stable")
    settings = [*frame[SETTING].drop_duplicates().itertuples(index=False, name=None)]
    if set(settings) <= set(facts.settings):
        settings.sort(key=facts.settings.index)
    rows: list[Row] = []
    for setting in settings:
        if len(settings) > 1:
            rows.append(Row(facts.short_name(setting), kind="heading"))
        for record in rows_of_setting(frame, setting).to_dict("records"):
            link = facts.anchor(setting, record["method"])
            cells = (Cell(say(record), "" if name in text else link) for name, say in shown.items())
            rows.append(Row(facts.methods[record["method"]], tuple(cells)))
        rows += references(setting)
    scope = facts.common_note
    if len(settings) == 1:
        note = f"{note} Setting: {facts.short_name(settings[0])}.".lstrip()
        # The scope has the name already if the draws of one setting share it.
        scope = "" if facts.short_name(settings[0]) in scope else scope
    return Table(name, caption, names, tuple(rows), note=note, scope=scope)


def shown_number(column: str, metric: str) -> Show:
    """Return the function that shows the number in ``column``, in the metric's unit."""
    return lambda row: number(row[column], metric)


def _spread(column: str, sd: str, metric: str, signed: bool = False) -> Show:
    return lambda row: spread(row[column], row[sd], metric, signed)


def _count(column: str) -> Show:
    return lambda row: str(row[column])


def reference(head: str, *texts: str) -> Row:
    """Return a row of reference values, which belong to no method."""
    return Row(head, tuple(map(Cell, texts)), "reference")


AREA = "auroc"
NO_AREA = "no area under the ROC curve exists, as no client has test samples of two classes"


def main_table(facts: Facts) -> Table:
    """Return the main table: mean ± standard deviation of each method in each setting.

    They are over seeds or over draws. The best value is in bold, and each is linked to its runs.
    With several settings the last column is the mean rank.
    """
    name = "draws" if facts.over_draws else "settings"
    table = _across(facts, name, facts.metric, facts.summary)
    if facts.over_draws or facts.merged_draws is None:  # The table of draws is no main table.
        table = _with_ranks(facts, replace(table, is_main=True))
    if AREA in facts.plan.metrics and AREA not in test_metrics(facts):
        table = replace(table, note=f"{table.note} {NO_AREA[0].upper()}{NO_AREA[1:]}.".lstrip())
    if facts.metric != "accuracy" or not facts.partitions:
        return table
    note = (
        f"{table.note} Majority class: always predicting the most frequent training class, of each "
        f"client or of the population; mean over {'all ' * bool(facts.sample_note)}clients."
    ).lstrip()
    values = [number(facts.majority(setting).mean(), "accuracy") for setting in facts.settings]
    everyone = [number(facts.population(setting), "accuracy") for setting in facts.settings]
    ranks = [""] * (len(table.columns) - 1 - len(values))  # A reference has no rank.
    rows = (
        reference("Majority class of each client", *values, *ranks),
        reference("Majority class of the population", *everyone, *ranks),
    )
    return replace(table, note=note, rows=(*table.rows, *rows))


def _with_ranks(facts: Facts, table: Table) -> Table:
    """Return a table of all methods with a column of their mean ranks, if there are any."""
    ranks = mean_ranks(facts)
    if ranks.isna().all():
        return table
    texts = {method: decimal(rank, 1) for method, rank in ranks.items()}
    best = decimal(ranks.min(), 1)
    rows = tuple(
        replace(row, cells=(*row.cells, Cell(texts[method], best=texts[method] == best)))
        for method, row in zip(facts.methods, table.rows, strict=True)
    )
    note = f"{table.note} Rank: mean over settings, 1 is best; equal means share a rank.".lstrip()
    columns_ = (*table.columns, Column("rank"))
    return replace(table, rows=rows, columns=columns_, note=note)


def predicted_table(facts: Facts) -> Table | None:
    """Return the table of metrics of predictions that the study asks for; None without any."""
    metrics = [name for name in test_metrics(facts) if _predicted(name)]
    if not metrics:
        return None
    tables = [facts.summarise(metric) for metric in metrics]
    frame = tables[0][summaries.KEY].copy()
    for metric, table in zip(metrics, tables, strict=True):
        frame[metric], frame[f"sd {metric}"] = table["mean"], table["sd_seeds"]
    caption = (
        "Final models on test samples (%): mean over clients, then mean ± standard deviation over "
        f"{count_of(facts, tables[0])}."
    )
    note = (
        "A value of one class is a mean over the clients that have it, an area under the ROC curve "
        "over those with two classes. Areas under the ROC curve and F1 are means over the classes "
        f"of a client's test samples. The calibration error has {BINS} bins of confidence."
    )
    shown = {
        name.removeprefix("accuracy_of_").replace("_", " "): _spread(name, f"sd {name}", name)
        for name in metrics
    }
    return by_setting(facts, "predicted", caption, frame, shown, note=note)


def _predicted(metric: str) -> bool:
    return metric in PREDICTED_METRICS or metric.startswith(BY_CLASS)


def test_metrics(facts: Facts) -> list[str]:
    """Return the metrics on test samples, sorted; numbers of classes by their size."""
    recorded = facts.rows.loc[facts.rows["split"] == "test", "metric"].unique()
    return sorted(recorded, key=lambda name: (name.startswith(BY_CLASS), len(name), name))


def other_metrics(facts: Facts) -> list[Table]:
    """Return the main table of every other test metric that was recorded."""
    tables = []
    recorded = {name for name in test_metrics(facts) if not _predicted(name)}
    for metric in sorted(recorded - {facts.metric}):
        summary = facts.summarise(metric)
        tables.append(_across(facts, f"settings-{metric}", metric, summary))
    return tables


def unseen_table(facts: Facts) -> Table | None:
    """Return the main table of the clients held out of training; None without any."""
    if not (facts.rows["split"] == UNSEEN).any():
        return None
    summary = facts.unseen_summary
    caption = (
        f"Clients held out of training: final {unit(facts.metric)} on their own test samples, mean "
        f"over these clients, then mean ± standard deviation over {count_of(facts, summary)}."
    )
    note = "Only tables on unseen clients count them."
    return _across(facts, "unseen", facts.metric, summary, caption, note)


def honest_table(facts: Facts) -> Table | None:
    """Return the main table without the clients that attack; None if none does."""
    if facts.without_attackers is None:
        return None
    summary = facts.without_attackers.summary
    caption = (
        f"Clients that do not attack: final {unit(facts.metric)}, mean over these clients, then "
        f"mean ± standard deviation over {count_of(facts, summary)}."
    )
    note = "Clients that attack in any run of a setting and seed are left out, for all methods."
    return _across(facts, "honest", facts.metric, summary, caption, note)


def main_note(facts: Facts, metric: str, summary: pd.DataFrame) -> str:
    """Return sentences on which values the means of a metric are made of."""
    values = (
        "Each client is tested on the test samples of all." if facts.uses_all_test_samples else ""
    )
    if metric == REWEIGHTED:
        values = (
            "Each client is tested on the test samples of all, with classes weighted by their "
            "shares in its training samples."
        )
    diverged = "Diverged runs are counted, not averaged." if summary["n_diverged"].sum() else ""
    undefined = facts.undefined_note(metric)
    notes = (values, undefined, facts.round_note.strip(), diverged, early_stops(facts))
    return " ".join(filter(None, notes))


def early_stops(facts: Facts) -> str:
    """Return a sentence on methods that stopped early, with the rounds of their runs."""
    runs, notes = summaries.stored_runs(facts.runs), []
    for method, entry in facts.plan.entries.items():
        planned, early = (entry.training.get(key, []) for key in ("rounds", "early_stopping"))
        rounds = runs.loc[runs["method"] == method, "rounds"].dropna()
        if (
            method in facts.methods
            and any(early)
            and len(planned) == 1
            and (rounds < planned[0]).any()
        ):
            notes.append(f"{facts.methods[method]} after {span(rounds)} of {planned[0]} rounds")
    return f"Stopped early on validation data: {'; '.join(notes)}." if notes else ""


def count_of(facts: Facts, summary: pd.DataFrame) -> str:
    """Return the number of replicates: ``3 seeds``, or ``10 draws of data or partition``."""
    counts = set(summary["n_seeds"])
    of = " of data or partition" if facts.over_draws else ""
    if counts == {1}:
        return f"{facts.replicates} (there is one, so no deviation)"
    if len(counts) == 1 and counts != {0}:
        return f"{counts.pop()} {facts.replicates}{of}"
    return f"the {facts.replicates}{of} that finished"


def _across(
    facts: Facts,
    name: str,
    metric: str,
    summary: pd.DataFrame,
    caption: str = "",
    note: str = "",
) -> Table:
    """Return a table with a row per method and a column per setting; the best values are marked."""
    by_key = {(*(row[key] for key in summaries.KEY),): row for row in summary.to_dict("records")}
    best = best_means(summary, metric)
    rows = []
    for method, title in facts.methods.items():
        cells = []
        for setting in facts.settings:
            row = by_key.get((*setting, method))
            if row is None:
                cells.append(Cell(NOTHING))
                continue
            text = spread(row["mean"], row["sd_seeds"], metric)
            is_best = len(facts.methods) > 1 and (*setting, method) in best
            rounds_text = facts.longer_training.get(method, "") if is_best else ""
            remark = ", ".join(filter(None, (rounds_text, summaries.gaps(row))))
            cells.append(Cell(text, facts.anchor(setting, method), is_best, remark))
        rows.append(Row(title, tuple(cells)))
    heads = ["\n".join(facts.names.distinct[setting]) for setting in facts.settings]
    names = (Column("Method", True), *map(Column, heads))
    caption = caption or (
        f"Final test {unit(metric)}: mean over clients, then mean ± standard deviation over "
        f"{count_of(facts, summary)}. Best of each setting in bold{denial(facts, metric)}."
    )
    note = note or main_note(facts, metric, summary)
    scope = facts.common_note
    return Table(name, caption, names, tuple(rows), crossed="Setting", note=note, scope=scope)


def best_means(summary: pd.DataFrame, metric: str) -> set[tuple[str, ...]]:
    """Return setting and method of each entry with the best mean of its setting.

    Means are equal if their texts are.
    """
    frame = summary[summary["mean"].notna()]
    means = frame.groupby(SETTING, sort=False)["mean"]
    best = means.transform("max" if rising(metric) else "min")
    shown, best_shown = (
        values.map(lambda v: number(v, metric)) for values in (frame["mean"], best)
    )
    return {*frame.loc[shown == best_shown, summaries.KEY].itertuples(index=False, name=None)}


def denial(facts: Facts, metric: str) -> str:
    """Return words for a caption if no difference in the study's metric is significant."""
    verdicts = {*facts.claims["verdict"]} if metric == facts.metric else set()
    is_denied = verdicts and not verdicts & {claims.AHEAD, claims.BEHIND}
    return "; no difference is significant" if is_denied else ""


def clients_table(facts: Facts) -> Table:
    """Return the table of differences between clients: means over the worst, and weighted ones."""
    metric = facts.metric

    def references(setting: StudySetting) -> list[Row]:
        shares = facts.majority(setting)
        # Draws have different clients, so that no value of a client is a mean over draws.
        if metric != "accuracy" or shares.empty or facts.over_draws:
            return []
        values = (shares.mean(), math.nan, shares.std(), math.nan, shares.quantile(0.1))
        texts = [number(float(value), metric) for value in (*values, shares.min())]
        return [reference("Majority class of each client", *texts, str(len(shares)))]

    caption = (
        f"Final test {unit(metric)} over clients, each by its mean over seeds"
        f"{'; means over draws' if facts.over_draws else ''}."
    )
    note = (
        "Weighted: mean weighted by test samples, ± standard deviation over "
        f"{facts.replicates}. Worst tenth: mean over the worst tenth of the clients, at least one. "
        "10th percentile: from the worse end."
    )
    shown: dict[str, Show] = {
        "mean": shown_number("mean", metric),
        "weighted\nby samples": _spread("weighted", "weighted_sd_seeds", metric),
        "sd over\nclients": shown_number("sd_clients", metric),
        "worst\ntenth": shown_number("worst_tenth", metric),
        "10th\npercentile": shown_number("p10", metric),
        "worst\nclient": shown_number("worst", metric),
        "clients": lambda row: f"{row['n_clients']:.0f}",
    }
    summary = facts.summary
    return by_setting(facts, "clients", caption, summary, shown, references=references, note=note)


def domains_table(facts: Facts) -> Table | None:
    """Return the table of methods by the domain of clients; None with fewer than two domains."""
    metric = facts.metric
    rows = summaries.complete_rows(summaries.final_rows(facts.rows, metric), facts.runs)
    rows = rows.assign(domain=facts.traits(rows, "domain")).dropna(subset=["domain"])
    names = [str(name) for name in rows["domain"].unique()]
    if len(names) < 2:
        return None
    keys = [*summaries.KEY, "domain"]
    runs = rows.groupby([*keys, "run"], sort=False)["value"].mean()
    over_runs = runs.groupby(keys, sort=False).agg(["mean", "std"])
    wide = {kind: over_runs[kind].unstack("domain").add_prefix(f"{kind} ") for kind in over_runs}
    frame = pd.concat(list(wide.values()), axis=1).reset_index()
    frame = facts.mean_over_draws(frame, {f"mean {name}": f"std {name}" for name in names})
    caption = (
        f"Final test {unit(metric)} by domain: mean over the clients most of whose training "
        f"samples are from it, then mean ± standard deviation over {facts.replicates}."
    )
    shown = {name: _spread(f"mean {name}", f"std {name}", metric) for name in names}
    return by_setting(facts, "domains", caption, frame, shown)


def personal_table(facts: Facts) -> Table | None:
    """Return the table of values before and after personalisation; None without any."""
    metric = facts.metric
    frame = personalisation(facts)
    if frame.empty:
        return None
    caption = (
        f"Test {unit(metric)} of the shared model (before) and of the clients' own models (after): "
        f"mean over clients, then mean ± standard deviation over {facts.replicates}."
    )
    note = f"Better: share of clients (%) whose own model is better.{facts.round_note}"
    shown: dict[str, Show] = {
        "before": _spread("before", "before_sd_seeds", metric),
        "after": _spread("after", "after_sd_seeds", metric),
        "gain" if rising(metric) else "change": _spread(
            "gain", "gain_sd_seeds", metric, signed=True
        ),
        "better": shown_number("better", "accuracy"),
    }
    return by_setting(facts, "personalisation", caption, frame, shown, note=note)


def personalisation(facts: Facts) -> pd.DataFrame:
    """Return ``before``, ``after`` and ``gain``, a row for each setting and method."""
    frame = summaries.personalisation(facts.rows, facts.runs, facts.metric)
    values = ("before", "after", "gain")
    return facts.mean_over_draws(frame, {value: f"{value}_sd_seeds" for value in values})


def grid_table(facts: Facts) -> Table | None:
    """Return the table of all grid points, with those that validation data chose."""
    metric = facts.metric
    frame = summaries.grid_points(facts.rows, facts.runs, metric)
    spreads = {"val": "val_sd_seeds", "test": "test_sd_seeds"}
    frame = facts.mean_over_draws(frame, spreads, [*summaries.KEY, "point"])
    frame = frame[frame.groupby(summaries.KEY)["point"].transform("size") > 1]
    if frame.empty:
        return None
    if not facts.over_draws:
        is_waiting = frame.groupby(summaries.KEY)["n_missing"].transform("sum") > 0
        words = np.where(is_waiting, "preliminary", "selected")
        frame["selected"] = np.where(frame["selected"], words, "")
    replicates = facts.replicates
    values = " of each draw" if facts.over_draws else ""
    caption = f"Hyper-parameter grids: {unit(metric)}, mean ± standard deviation over {replicates}."
    note = (
        f"The point with the best validation mean{values} is selected, the first of equal ones; "
        "test values do not count. A point with a diverged run is selected only if every point "
        "has one."
    )

    def selection(row: Record) -> str:
        if facts.over_draws:
            return f"in {row['selected']}" if row["selected"] else ""
        return str(row["selected"])

    shown: dict[str, Show] = {
        "point": lambda row: row["point"] or "no grid values",
        "validation": _spread("val", "val_sd_seeds", metric),
        "test": _spread("test", "test_sd_seeds", metric),
        replicates: lambda row: Cell(str(row["n_seeds"]), remark=summaries.gaps(row)).full_text,
        "selection": selection,
    }
    text = ("point", "selection")
    return by_setting(facts, "grids", caption, frame, shown, text=text, note=note)
