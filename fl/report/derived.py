"""The data behind the figures, plots and finer tables of a report.

Everything here is over the complete runs of the selected points.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pandas as pd

from fl.base.schema import COMPLETE, GLOBAL, PERSONAL, SETTING
from fl.report.summaries import final, rising

KEY = [*SETTING, "method"]


def used(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The test rows of ``metric`` of complete runs at selected points."""
    rows = rows[(rows["metric"] == metric) & (rows["split"] == "test")]
    picked = runs.loc[runs["selected"] & (runs["state"] == COMPLETE), ["method", "run"]]
    return rows.merge(picked, on=["method", "run"])


def clients(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Setting, method, client and ``value``: its final test value, mean over seeds."""
    last = final(used(rows, runs, metric), metric)
    return last.groupby([*KEY, "client"], sort=False)["value"].mean().reset_index()


def followed(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> pd.Series:
    """The uniform test mean over clients, by setting, method, round and run.

    For a method with a personal stage that stage is used; in earlier rounds, where it is not
    recorded, the shared model's.
    """
    part = used(rows, runs, metric)
    own = part[part["stage"] == PERSONAL].groupby(["method", "run"])["round"].min()
    first = part[["method", "run"]].merge(
        own.rename("first").reset_index(), on=["method", "run"], how="left"
    )["first"]
    shared = (part["stage"] == GLOBAL).to_numpy()
    begins = first.to_numpy()
    # A missing ``first`` (no personal stage) compares false, so such a run keeps its shared rows.
    part = part[~(shared & (part["round"].to_numpy() >= begins))]
    return part.groupby([*KEY, "round", "run"], sort=False)["value"].mean()


def curves(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Setting, method, round, ``mean`` and ``sd_seeds`` of what is `followed`."""
    grouped = followed(rows, runs, metric).groupby([*KEY, "round"], sort=False)
    return grouped.agg(mean="mean", sd_seeds="std").reset_index().sort_values("round")


def stages(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Setting, method, seed, client, ``before`` and ``after`` for methods with both stages.

    ``before`` is the last recorded value of the shared model, ``after`` of the client's own.
    """
    part = used(rows, runs, metric)
    last = part.groupby(["method", "run", "stage"])["round"].transform("max")
    part = part[part["round"] == last]
    index = [*KEY, "seed", "client"]
    before = part[part["stage"] == GLOBAL].set_index(index)["value"].rename("before")
    after = part[part["stage"] == PERSONAL].set_index(index)["value"].rename("after")
    return before.to_frame().join(after, how="inner").reset_index()


def personalisation(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """One row per setting and method with both stages: means and sds over seeds, and the gain."""
    each = stages(rows, runs, metric)
    each["gain"] = each["after"] - each["before"]
    seeds = each.groupby([*KEY, "seed"], sort=False)[["before", "after", "gain"]].mean()
    grouped = seeds.groupby(KEY, sort=False)
    mean, sd = grouped.mean(), grouped.std().add_suffix("_sd_seeds")
    return pd.concat([mean, sd], axis=1).reset_index()


def undrawn(setting: Iterable[str]) -> tuple[str, ...]:
    """A setting without the seeds of its data set and partition: ``synthetic(alpha=0.5)``."""
    return tuple(map(_without_seed, setting))


def arguments(text: str) -> tuple[str, list[str]]:
    """A data set, partition or model as its name and keys: ``f(a=1, b=[2, 3])`` has two."""
    name, _, inside = text.partition("(")
    return name, re.findall(r"\w+=.*?(?=, \w+=|$)", inside.removesuffix(")"))


def _without_seed(text: str) -> str:
    name, keys = arguments(text)
    keys = [key for key in keys if not key.startswith("seed=")]
    return f"{name}({', '.join(keys)})" if keys else name


def over_draws(summary: pd.DataFrame, metric: str, baseline: str | None) -> pd.DataFrame:
    """Settings that are drawn more than once, without their seeds, one row for each method.

    ``mean``, ``sd_draws`` and ``worst`` are over the ``n_draws`` for which the method's runs exist
    at every point of its grid and are complete at the selected one. ``difference`` and
    ``difference_sd_draws`` are from ``baseline`` on the same draw.

    Args:
        summary: As `fl.report.summaries.summarise` returns it.
    """
    lacking = summary["n_diverged"] + summary["n_missing"]
    lacking += summary["n_points"] - summary["n_points_there"]
    draws = summary[summary["n_seeds"].gt(0) & lacking.eq(0)]
    base = draws[draws["method"] == baseline].set_index(SETTING)["mean"]
    draws = draws.join(base.rename("base"), on=SETTING)
    draws["difference"] = draws["mean"] - draws["base"]
    plain = _undrawn(draws).join(draws.drop(columns=SETTING))
    several = _undrawn(summary[SETTING].drop_duplicates()).value_counts()
    found = plain.groupby(KEY, sort=False).agg(
        mean=("mean", "mean"),
        sd_draws=("mean", "std"),
        worst=("mean", "min" if rising(metric) else "max"),
        difference=("difference", "mean"),
        difference_sd_draws=("difference", "std"),
        n_draws=("mean", "size"),
    )
    found = found.reset_index().join(several.rename("settings"), on=SETTING)
    return found[found["settings"] > 1].drop(columns="settings")


def _undrawn(frame: pd.DataFrame) -> pd.DataFrame:
    plain = [undrawn(setting) for setting in frame[SETTING].itertuples(index=False)]
    return pd.DataFrame(plain, columns=SETTING, index=frame.index)
