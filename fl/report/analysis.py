"""A study's main table as a data frame, for notebooks and scripts of a user's own."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fl.base.schema import SETTING, UNSEEN
from fl.plan import plan_files
from fl.report import result_files, summaries
from fl.report.facts import read_plan

COLUMNS = {
    "dataset": "as the study writes it, with what it varies: `synthetic(alpha=0.5, beta=0.5)`",
    "partition": "likewise: `dirichlet(clients=8, alpha=0.3)`",
    "model": "likewise",
    "method": "the study's name of the entry, as in the other tables",
    "title": "what the report calls it",
    "point": "the hyper-parameters that validation data chose of a grid, `mu=0.1, lr=0.01`; else "
    "empty",
    "stage": "`global`: the shared model was tested; `personal`: every client's own",
    "round": "the last recorded one, of which all values are; -1 where no run is there",
    "mean": "over seeds, of the unweighted mean over clients",
    "sd_seeds": "standard deviation over seeds of that mean (n - 1 below; NaN of a single seed)",
    "sd_clients": "standard deviation over clients, each by its mean over seeds",
    "worst": "the worst client, by its mean over seeds",
    "p10": "the tenth percentile of clients, counted from the worse end",
    "n_clients": "how many clients",
    "n_seeds": "how many complete runs the row is over",
    "n_diverged": "how many runs diverged; they count in none of the values",
    "n_missing": "how many runs are not there yet",
}
"""The columns of `load`: what each of them says."""


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
    results = Path(results)
    planned = read_plan(study, results)
    known = plan_files.read(results / "plan" / "plan.json").get("settings", {})
    store = Path(store or known.get("store", results / "runs"))
    rows, runs = result_files.read(planned, store, results)
    split = UNSEEN if unseen else "test"
    found = summaries.summarise(rows, runs, metric or planned["metric"], split)
    if unseen:
        found = found[found["n_clients"] > 0]
    chosen = runs.loc[runs["selected"], [*SETTING, "method", "title", "point"]]
    keys = [*SETTING, "method"]
    return found.merge(chosen.drop_duplicates(keys), on=keys, how="left")[list(COLUMNS)]
