"""The best point of each entry by validation data, over all draws together."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from fl.base.schema import COMPLETE
from fl.report import summaries
from fl.report.tables import HYPER

PREFIX = "tuning-"
"""Prefix of the studies in which the points of tracks were chosen, on draws of their own."""


def points(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each entry and point of which all draws are trained and none diverged.

    The columns are ``method``, ``val`` (accuracy on validation data, mean over clients and draws),
    and ``hp.KEY`` of each key of a grid.

    Args:
        rows: Metrics of a study, `fl.report.result_files.read`.
        runs: Its runs.
    """
    score = summaries.final_rows(rows, "accuracy", "val").groupby(["method", "run"])["value"].mean()
    runs = runs.merge(score.rename("val").reset_index(), on=["method", "run"], how="left")
    runs["val"] = runs["val"].where(runs["state"] == COMPLETE)
    keys = [column for column in runs if str(column).startswith(HYPER)]
    grouped = runs.groupby(["method", *keys], sort=False, dropna=False)["val"]
    return grouped.agg(lambda draws: draws.mean(skipna=False)).dropna().reset_index()


def best(table: pd.DataFrame, starts: Mapping[str, str]) -> dict[str, pd.Series]:
    """Return the best point of each entry, the first of equal ones.

    An entry that starts from another one has the other's best point.

    Args:
        table: Result of `points`.
        starts: The entry from which each entry starts, by its name.
    """
    chosen: dict[str, pd.Series] = {}
    methods = [str(method) for method in table["method"].unique()]
    for method in sorted(methods, key=lambda method: method in starts):
        rows = table[table["method"] == method]
        for key, value in chosen.get(starts.get(method, ""), pd.Series()).items():
            start_key = str(key).replace(HYPER, f"{HYPER}start.")
            if start_key in rows and str(key).startswith(HYPER) and pd.notna(value):
                rows = rows[rows[start_key] == value]
        chosen[method] = rows.iloc[int(rows["val"].argmax())]
    return chosen
