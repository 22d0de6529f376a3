"""How far rounding alone moves the results of a study.

A study is trained again some times, each time with other last bits of the weights with which its
runs begin (`fl.api.training.Training.rounding`). All else is equal, so what moves is what rounding
moves. Of N repetitions the largest change is shown. A further one exceeds it in one of N + 1 cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd

from fl.base.schema import SETTING, SHARES
from fl.base.units import quantity
from fl.report import claims, summaries
from fl.report.cells import number
from fl.report.facts import Facts
from fl.report.summaries import KEY


def spread(facts: Facts, repetitions: Sequence[Facts]) -> pd.DataFrame:
    """Return how far rounding moves each method in each setting.

    Args:
        facts: The study.
        repetitions: The same study with other last bits.

    Returns:
        The columns `KEY`; ``mean``, as the report shows it; ``rounding``, the largest change of it;
        ``rounding_run``, the largest change of a single run, which is a mean over clients. NaN
        where a run is missing or diverged.
    """
    studies = (facts, *repetitions)
    means = [(study.merged_draws or study).summary.set_index(KEY)["mean"] for study in studies]
    runs = _largest_change([_run_means(study) for study in studies]).rename("rounding_run")
    by_setting = summaries.without_draws(runs.reset_index(), facts.setting_by_scenario)
    table = means[0].to_frame().assign(rounding=_largest_change(means))
    return table.join(by_setting.groupby(KEY)["rounding_run"].max()).reset_index()


def changed_verdicts(facts: Facts, repetition: Facts) -> str:
    """Return in words which verdicts of a study change with other values."""
    tests, repeated = ((study.merged_draws or study).claims for study in (facts, repetition))
    return claims.changed_verdicts(tests, repeated, SETTING)


def with_metrics(facts: Facts, run: str, metrics: pd.DataFrame) -> Facts:
    """Return a study with other metrics of a run.

    Args:
        facts: The study.
        run: The run.
        metrics: Its metrics, as the store has them. Values that the study does not have are left
            out, and others, such as metrics of predictions, stay.
    """
    key = ["round", "client", "split", "stage", "metric"]
    values = metrics.set_index(key)["value"]
    rows = facts.rows.copy()
    is_of_run = rows["run"] == run
    places = pd.MultiIndex.from_frame(rows.loc[is_of_run, key])
    measured = values.reindex(places).to_numpy()
    stored = rows.loc[is_of_run, "value"]
    rows.loc[is_of_run, "value"] = stored.where(pd.isna(measured), measured)
    return replace(facts, rows=rows)


def lines(facts: Facts, repetitions: Sequence[Facts]) -> Iterator[str]:
    """Yield a table of how far rounding moves each method, and whether a verdict changes."""
    factor, unit = (100, " points") if facts.metric in SHARES else (1, "")
    count = quantity(len(repetitions), "repetition")
    yield f"{facts.metric}, and how far rounding alone moved it in {count}:"
    merged = facts.merged_draws or facts
    for row in spread(facts, repetitions).to_dict("records"):
        setting = merged.short_name((row["dataset"], row["partition"], row["model"]))
        place = f"{setting}: " if len(merged.settings) > 1 else ""
        yield (
            f"  {place}{facts.methods[row['method']]}: {number(row['mean'], facts.metric)}, moved "
            f"by up to {factor * row['rounding']:.2g}{unit}, a single run by up to "
            f"{factor * row['rounding_run']:.2g}{unit}"
        )
    texts = [changed_verdicts(facts, repetition) for repetition in repetitions]
    for number_, text in enumerate(texts, 1):
        if text != claims.NO_CHANGE:
            yield f"repetition {number_}: {text}"
    if {*texts} == {claims.NO_CHANGE}:
        yield claims.NO_CHANGE


def _run_means(facts: Facts) -> pd.Series:
    """Return the mean over clients of each run of a selected point, by draw, method and seed."""
    last = summaries.final_rows(facts.rows, facts.metric)
    last = summaries.complete_rows(last, facts.runs)
    means: pd.Series = last.groupby([*KEY, "seed"])["value"].mean()
    return means


def _largest_change(values: Sequence[pd.Series]) -> pd.Series:
    """Return the largest change from the first values in the others."""
    first = values[0]
    changes = [(repeated.reindex(first.index) - first).abs() for repeated in values[1:]]
    largest: pd.Series = pd.concat(changes, axis=1).max(axis=1, skipna=False)
    return largest
