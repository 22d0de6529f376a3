"""The main tables of a report, from its facts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pandas as pd

from fl.base.schema import REWEIGHTED, SETTING, UNSEEN, StudySetting
from fl.report import derived, summaries
from fl.report.cells import (
    NOTHING,
    Cell,
    Group,
    Row,
    Table,
    mark_best,
    number,
    probability,
    spread,
    unit,
)
from fl.report.facts import Facts

NAN = float("nan")


def at(frame: pd.DataFrame, setting: StudySetting) -> pd.DataFrame:
    """The rows of ``frame`` that belong to a setting."""
    return frame[(frame[SETTING] == list(setting)).all(axis=1)]


def majority(facts: Facts, setting: StudySetting) -> pd.Series:
    """Per client, what predicting its training majority scores; mean over the seeds' partitions."""
    each = [part.majority(facts.together) for part in facts.partitions_of(setting)]
    return pd.concat(each).groupby(level=0).mean() if each else pd.Series(dtype=float)


def _population(facts: Facts, setting: StudySetting) -> float:
    each = [part.population_majority() for part in facts.partitions_of(setting)]
    return sum(each) / len(each) if each else NAN


def remark(row: pd.Series) -> str:
    """What a cell must mention: ``1 diverged, 2 missing``, see `fl.report.summaries.gaps`."""
    return summaries.gaps(row.to_dict())


def unsettled(facts: Facts, summary: pd.DataFrame) -> str:
    """A sentence for a caption on methods whose grid lacks runs; "" if none does."""
    grids = summary[summary["n_points"] > 1]
    lacking = set(grids.loc[grids["n_points_there"] < grids["n_points"], "method"])
    if not lacking:
        return ""
    named = ", ".join(name for method, name in facts.methods.items() if method in lacking)
    return (
        f" Not all grid points are there of {named}: these numbers are of the best point so far, "
        "and another may be selected in the end."
    )


def main_table(facts: Facts, metric: str, summary: pd.DataFrame) -> Table:
    """Methods against settings: mean ± sd over seeds, the best in bold, each linked to its runs."""
    rows = _rows(facts, metric, summary)
    if metric == "accuracy":
        rows += _majority_rows(facts)
    each = "each on the test samples of all, " if facts.together else ""
    if metric == REWEIGHTED:
        each = "each on the test samples of all, classes by their shares in its training samples, "
    caption = (
        f"Final test {unit(metric)}: mean over clients, {each}then mean ± standard deviation over "
        f"{_seeds(summary)}. Best of each setting in bold.{facts.when}"
    )
    if summary["n_diverged"].sum():
        caption += " Diverged runs are counted, not averaged."
    caption += unsettled(facts, summary)
    if metric == "accuracy" and facts.partitions:
        caption += (
            " Majority class: always predicting the most frequent training class, of each client "
            "(mean over clients) or of the population."
        )
    return _by_method("settings", caption, facts, rows)


def unseen_table(facts: Facts) -> Table | None:
    """The main table of the clients that were held out of training, if any were."""
    if not (facts.rows["split"] == UNSEEN).any():
        return None
    summary = facts.unseen_summary
    caption = (
        f"Clients held out of training: final {unit(facts.metric)} on their own test samples, mean "
        f"over these clients, then mean ± standard deviation over {_seeds(summary)}. No other "
        "table counts them."
    )
    caption += unsettled(facts, summary)
    return _by_method("unseen", caption, facts, _rows(facts, facts.metric, summary))


def _by_method(name: str, caption: str, facts: Facts, rows: list[Row]) -> Table:
    columns = tuple("\n".join(facts.names.own[setting]) for setting in facts.settings)
    groups = (Group("", tuple(rows)),)
    scope = facts.everywhere
    return Table(name, caption, "Method", columns, groups, crossed="Setting", scope=scope)


def _rows(facts: Facts, metric: str, summary: pd.DataFrame) -> list[Row]:
    """A row per method, a cell per setting."""
    found = {(*row[[*SETTING, "method"]],): row for _, row in summary.iterrows()}
    rows, means = [], []
    for method, name in facts.methods.items():
        cells, values = [], []
        for setting in facts.settings:
            row = found.get((*setting, method))
            values.append(NAN if row is None else row["mean"])
            if row is None:
                cells.append(Cell(NOTHING))
                continue
            text = spread(row["mean"], row["sd_seeds"], metric)
            cells.append(Cell(text, f"#{facts.anchor(setting, method)}", remark=remark(row)))
        rows.append(Row(Cell(name), tuple(cells)))
        means.append(values)
    return mark_best(rows, means, metric, summaries.rising(metric))


def _seeds(summary: pd.DataFrame) -> str:
    counts = sorted(set(summary["n_seeds"]))
    if len(counts) == 1 and counts[0] > 1:
        return f"{counts[0]} seeds"
    if len(counts) == 1 and counts[0] == 1:
        return "seeds (there is one, so no deviation)"
    return "the seeds that finished"


def _majority_rows(facts: Facts) -> list[Row]:
    own = [majority(facts, s).mean() for s in facts.settings]
    everyone = [_population(facts, s) for s in facts.settings]
    named = (("Majority class of each client", own), ("Majority class of the population", everyone))
    return [
        Row(Cell(name), tuple(Cell(number(v, "accuracy")) for v in values), reference=True)
        for name, values in named
        if any(math.isfinite(v) for v in values)
    ]


def by_setting(
    facts: Facts,
    name: str,
    caption: str,
    columns: tuple[str, ...],
    groups: list[Group],
    text: int = 0,
) -> Table:
    """A table of methods with a group per setting; a single setting is named in the caption."""
    if len(groups) == 1:
        caption += f" Setting: {groups[0].heading}."
        groups = [Group("", groups[0].rows)]
    return Table(name, caption, "Method", columns, tuple(groups), text, scope=facts.everywhere)


Cells = Callable[[pd.Series, str], Sequence[Cell]]
"""The cells of a row of a frame, with the link to where its method and setting are told in full."""


def grouped(facts: Facts, frame: pd.DataFrame, cells: Cells) -> list[Group]:
    """A row for each row of ``frame``, headed by its method, in a group for each setting."""
    groups = []
    for setting in facts.settings:
        rows = []
        for _, row in at(frame, setting).iterrows():
            link = f"#{facts.anchor(setting, row['method'])}"
            rows.append(Row(Cell(facts.methods[row["method"]]), tuple(cells(row, link))))
        if rows:
            groups.append(Group(facts.short(setting), tuple(rows)))
    return groups


def clients_table(facts: Facts) -> Table:
    """How unevenly methods serve clients."""
    groups = []
    metric = facts.metric
    for setting in facts.settings:
        rows = []
        for _, row in at(facts.summary, setting).iterrows():
            values = [number(row[c], metric) for c in ("mean", "sd_clients", "p10", "worst")]
            link = f"#{facts.anchor(setting, row['method'])}"
            cells = [Cell(v, link) for v in values] + [Cell(str(row["n_clients"]))]
            rows.append(Row(Cell(facts.methods[row["method"]]), tuple(cells)))
        own = majority(facts, setting)
        if metric == "accuracy" and len(own):
            figures = (own.mean(), own.std(), float(own.quantile(0.1)), own.min())
            values = [number(v, metric) for v in figures]
            cells = [Cell(v) for v in [*values, str(len(own))]]
            rows.append(Row(Cell("Majority class of each client"), tuple(cells), reference=True))
        groups.append(Group(facts.short(setting), tuple(rows)))
    caption = (
        f"Final test {unit(metric)} over clients, each client by its mean over seeds: mean, "
        "standard deviation over clients, tenth percentile from the worse end, worst client."
    )
    caption += unsettled(facts, facts.summary)
    columns = ("mean", "sd over clients", "10th percentile", "worst client", "clients")
    return by_setting(facts, "clients", caption, columns, groups)


def paired_table(facts: Facts) -> Table | None:
    """Every method against the baseline."""
    baseline = facts.plan.get("baseline")
    if baseline is None:
        return None
    frame = summaries.paired(facts.rows, facts.runs, facts.metric, baseline)
    if frame.empty:
        return None

    def cells(row: pd.Series, link: str) -> Sequence[Cell]:
        gain = spread(row["difference"], row["difference_sd_seeds"], facts.metric, signed=True)
        shares = [Cell(number(row[c], "accuracy")) for c in ("better", "equal", "worse")]
        counts = [Cell(str(row["n_clients"])), Cell(probability(row["p_sign"]))]
        return Cell(gain, link), *shares, *counts, Cell(str(row["n_seeds"]))

    caption = (
        f"Against {facts.methods[baseline]} on the same partition and seeds. Difference: final "
        f"test {unit(facts.metric)}, mean ± standard deviation over paired seeds. Better, equal, "
        "worse: share of clients (%), each by its mean difference over seeds. p: two-sided exact "
        "sign test over clients, equal ones left out."
    )
    caption += unsettled(facts, facts.summary)
    columns = ("difference", "better", "equal", "worse", "clients", "p (sign test)", "seeds")
    return by_setting(facts, "paired", caption, columns, grouped(facts, frame, cells))


def personal_table(facts: Facts) -> Table | None:
    """Before and after personalisation, for methods that recorded both."""
    frame = derived.personalisation(facts.rows, facts.runs, facts.metric)
    if frame.empty:
        return None

    def cells(row: pd.Series, link: str) -> Sequence[Cell]:
        found = [
            Cell(spread(row[c], row[f"{c}_sd_seeds"], facts.metric, signed=c == "gain"), link)
            for c in ("before", "after", "gain")
        ]
        if facts.metric == "accuracy" and facts.partitions:
            own = majority(facts, tuple(row[list(SETTING)]))
            found.append(Cell(number(own.mean(), "accuracy")))
        return found

    caption = (
        f"Test {unit(facts.metric)} of the shared model before personalisation and of the "
        "clients' own models after it: mean over clients, then mean ± standard deviation over "
        "seeds; the gain is paired by seed."
    )
    caption += unsettled(facts, facts.summary)
    columns: tuple[str, ...] = ("before", "after", "gain")
    if facts.metric == "accuracy" and facts.partitions:
        columns += ("majority class",)
        caption += " Majority class: that of each client, mean over clients."
    return by_setting(facts, "personalisation", caption, columns, grouped(facts, frame, cells))


def other_metrics(facts: Facts) -> list[Table]:
    """The main table of every other test metric that was recorded."""
    recorded = facts.rows.loc[facts.rows["split"] == "test", "metric"].unique()
    others = sorted(m for m in recorded if m != facts.metric)
    return [main_table(facts, m, summaries.summarise(facts.rows, facts.runs, m)) for m in others]
