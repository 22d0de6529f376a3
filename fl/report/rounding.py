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
    means, *other_means = (_means(study) for study in (facts, *repetitions))
    runs, *other_runs = (_run_means(study) for study in (facts, *repetitions))
    largest = _largest_change(runs, other_runs)
    settings = facts.setting_by_scenario
    of_setting = summaries.without_draws(largest.rename("rounding_run").reset_index(), settings)
    table = means.to_frame().assign(rounding=_largest_change(means, other_means))
    table = table.join(of_setting.groupby(KEY)["rounding_run"].max())
    return table.reset_index()


def changed_verdicts(facts: Facts, again: Facts) -> str:
    """Return in words which verdicts of a study are other ones with other values."""
    merged, other = facts.merged_draws or facts, again.merged_draws or again
    return claims.changed_verdicts(merged.claims, other.claims, SETTING)


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
    own = rows.loc[is_of_run, "value"]
    rows.loc[is_of_run, "value"] = own.where(pd.isna(measured), measured)
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
    texts = [changed_verdicts(facts, again) for again in repetitions]
    for number_, text in enumerate(texts, 1):
        if text != claims.NO_CHANGE:
            yield f"repetition {number_}: {text}"
    if {*texts} == {claims.NO_CHANGE}:
        yield claims.NO_CHANGE


def _means(facts: Facts) -> pd.Series:
    """Return the mean of each method in each setting."""
    means: pd.Series = (facts.merged_draws or facts).summary.set_index(KEY)["mean"]
    return means


def _run_means(facts: Facts) -> pd.Series:
    """Return the mean over clients of each run of a selected point, by draw, method and seed."""
    last = summaries.final_rows(facts.rows, facts.metric)
    last = summaries.complete_rows(last, facts.runs)
    means: pd.Series = last.groupby([*KEY, "seed"])["value"].mean()
    return means


def _largest_change(values: pd.Series, others: Sequence[pd.Series]) -> pd.Series:
    changes = [(other.reindex(values.index) - values).abs() for other in others]
    largest: pd.Series = pd.concat(changes, axis=1).max(axis=1, skipna=False)
    return largest
