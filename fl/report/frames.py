"""A study's numbers as data frames, for notebooks and scripts of a user's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from fl.base.schema import UNSEEN
from fl.plan import plan_files
from fl.report import over_rounds, result_files, summaries
from fl.report.facts import read_plan
from fl.report.summaries import KEY

COLUMNS = [
    *KEY,
    *("title", "point", "stage", "round"),
    *("mean", "sd_seeds", "sd_clients", "worst", "p10"),
    *("n_clients", "n_seeds", "n_diverged", "n_missing"),
]
"""Of `load`; ``docs/analyse.md`` says what each of them is."""


def load(
    study: str,
    results: str | Path = "results",
    store: str | Path | None = None,
    metric: str | None = None,
    unseen: bool = False,
) -> pd.DataFrame:
    """A study's main table: a row for each setting and method, at the selected point.

    The columns are `COLUMNS`. Values are on the clients' test samples; shares are fractions of one:
    0.96 where the report says 96.0. Nothing is written.

    Args:
        results: The folder that `config.yaml` names so.
        store: The folder of runs, by default the planned one. It is read only if a table in
            ``results/tables`` is absent, incomplete or of another plan.
        metric: By default the study's.
        unseen: Of the clients that were held out of training instead.

    Raises:
        DataError: For a study that was not planned and for a file that cannot be read.
    """
    plan, rows, runs = _tables(study, results, store)
    split = UNSEEN if unseen else "test"
    summary = summaries.summarise(rows, runs, metric or plan["metric"], split)
    if unseen:
        summary = summary[summary["n_clients"] > 0]
    chosen = runs.loc[runs["selected"], [*KEY, "title", "point"]]
    return summary.merge(chosen.drop_duplicates(KEY), on=KEY, how="left")[COLUMNS]


def curves(
    study: str,
    results: str | Path = "results",
    store: str | Path | None = None,
    unseen: bool = False,
) -> pd.DataFrame:
    """A study round by round: a row for each method, seed, round, client and metric.

    The columns are `fl.report.over_rounds.CURVE_COLUMNS`. Runs are complete and at the selected
    point; their last round is that of `load`, unless the study says ``scored: best``. A method that
    starts from a stored model goes on in that one's rounds and bytes. Arguments and errors are
    those of `load`.
    """
    _, rows, runs = _tables(study, results, store)
    return over_rounds.curves(rows, runs, UNSEEN if unseen else "test")


def _tables(
    study: str, results: str | Path, store: str | Path | None
) -> tuple[Mapping[str, Any], pd.DataFrame, pd.DataFrame]:
    """A study's plan, its long table and its runs table."""
    results = Path(results)
    plan = read_plan(study, results)
    settings = plan_files.read(results / "plan" / "plan.json").get("settings", {})
    store = Path(store or settings.get("store", results / "runs"))
    return plan, *result_files.read(plan, store, results)
