"""One rule for what a report may claim of two methods.

What is replicated is a *draw* of data or partition. Where a study has one draw of a setting, it is
a training seed, and a test shows what happens if training is repeated, not what holds for other
data. It is never a client, as clients of a run share its model. Two methods are compared by their
differences on the same draws. One is *ahead* only if the sign-flip test says so at `LEVEL` after
the step-down maxT correction (`fl.report.max_t`) over all comparisons of its family, which is named
before results are seen: those of a page, or of a track's baseline.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fl.base.schema import BY_CLASS, SETTING, SHARES, rising
from fl.report import max_t
from fl.report.summaries import KEY, SettingByScenario, complete, final

LEVEL = 0.05
AHEAD, BEHIND, OPEN, UNINFORMATIVE = "ahead", "behind", "not told apart", "uninformative"
"""What may be said of a comparison."""
DRAW, SEED = "draw", "seed"
"""What is replicated."""
CEILING, FLOOR = "at the ceiling", "at the majority class"
MARGIN = 0.01
"""Two methods whose shares differ by less are equal in practice."""
COUNTED = ("accuracy", "balanced_accuracy", "macro_f1")
"""Metrics that are 1 only if no test sample is wrong: near 1 they are at the `CEILING`, and
with the errors of the majority predictor at the `FLOOR`."""

COLUMNS = [
    *KEY,
    *("other", "unit", "n", "difference", "low", "high", "better", "worse"),
    *("p", "p_corrected", "p_equal", "verdict", "reason", "differences"),
]

TESTED = ["n", "difference", "low", "high", "reason", "differences"]
"""What `tested` gives."""

Values = dict[str, Any]
"""Some of `COLUMNS`, for one comparison."""


@functools.lru_cache(4096)
def interval(differences: tuple[float, ...]) -> tuple[float, float]:
    """Return the bootstrap's 95 % interval of the mean (BCa, Efron 1987), the same in each call.

    NaN for so few differences that no test could tell them from 0. The interval is too narrow for
    few differences: of 400 normal samples of six it covers the mean in 88 %, of 400 of thirteen
    in 90 %.
    """
    from scipy.stats import bootstrap

    values = np.asarray(differences, float)
    if max_t.smallest(len(values)) > LEVEL:
        return math.nan, math.nan
    if np.ptp(values) < 1e-12:
        return float(values[0]), float(values[0])
    bounds = bootstrap((values,), np.mean, n_resamples=9999, random_state=0).confidence_interval
    return float(bounds.low), float(bounds.high)


def compared(
    rows: pd.DataFrame,
    runs: pd.DataFrame,
    metric: str,
    baseline: str | None,
    contrasts: Mapping[str, str] | None = None,
    *,
    settings: SettingByScenario,
    floors: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return comparisons of each method with ``baseline``, or of all pairs; columns `COLUMNS`.

    ``dataset``, ``partition`` and ``model`` are without the seeds of draws. ``difference`` is the
    mean over ``n`` units (``unit``: `DRAW` or `SEED`) that both methods have, each by its mean over
    clients and seeds; ``low`` and ``high`` bound it (`interval`), ``differences`` are those of
    units, by number of the draw or seed. ``better`` and ``worse``: shares of clients, each of a
    draw by its mean over seeds. ``p_corrected`` and ``p_equal`` (`judged`) are over all rows.

    A comparison is `UNINFORMATIVE`, and not tested, if a method gives to the digit what an earlier
    entry gives, if both err on less than one test sample of a draw, or if both err as often as the
    majority predictor.

    Args:
        rows: Table of values.
        runs: Table of runs.
        metric: What is compared.
        baseline: An entry.
        contrasts: Further pairs.
        settings: Setting of each data set, partition and model.
        floors: Errors of the majority predictor (`fl.report.majority`), where they are known.
    """
    last = complete(final(rows, metric), runs)
    last = last.assign(
        draw=pd.Series([*last[SETTING].itertuples(index=False, name=None)], last.index)
    )
    counted = complete(final(rows, "accuracy"), runs) if metric in COUNTED else last.iloc[:0]
    error_counts = wrong_samples(counted)
    if floors is not None:
        error_counts = error_counts.merge(floors.rename(columns={"errors": "floor"}), how="left")
    titles = dict(zip(runs["method"], runs["title"], strict=True))
    records: list[Values] = []
    for setting, group in last.groupby(last["draw"].map(settings), sort=False):
        has_draws = sum(second == setting for second in settings.values()) > 1
        unit = DRAW if has_draws else SEED
        order = [method for method in runs["method"].unique() if method in set(group["method"])]
        by_method = group.set_index(["draw", "seed", "client", "method"])["value"]
        wide = by_method.unstack("method")[order]
        places = error_counts[SETTING].itertuples(index=False, name=None)
        in_setting = [settings[place] == setting for place in places]
        mean_errors = error_counts.loc[in_setting].groupby("method").mean(numeric_only=True)
        # Draws of all settings are counted alike, so that their signs are flipped together.
        draws = [scenario for scenario in settings if settings[scenario] == setting]
        for first, second in _pairs(wide, metric, baseline, contrasts or {}):
            key = dict(zip(KEY, (*setting, first), strict=True))
            gain = (wide[first] - wide[second]).dropna()
            if len(gain):
                judged_here = (first,) if second == baseline else (first, second)
                reason = uninformative(wide, (first, second), mean_errors, titles, judged_here)
                about: Values = {**key, "other": second, "unit": unit, **_clients(gain, metric)}
                units = gain.groupby(["draw", "seed"]).mean().groupby(unit).mean()
                if unit == DRAW:
                    units.index = pd.Index([draws.index(draw) for draw in units.index])
                records.append(about | tested(units, reason))
    columns = [*KEY, "other", "unit", "better", "worse", *TESTED]
    frame = pd.DataFrame(records, columns=columns)
    return judged(frame, rising(metric), margin(metric))[COLUMNS]


def margin(metric: str) -> float:
    """Return the difference below which two values of a metric are equal; NaN if none is."""
    is_share = metric in SHARES or metric.startswith(BY_CLASS)
    return MARGIN if is_share else math.nan


def wrong_samples(rows: pd.DataFrame) -> pd.DataFrame:
    """Return ``errors``, the wrong samples of all clients, by setting, method and run.

    Args:
        rows: Final rows of the accuracy of clients.
    """
    counts = (rows["n"] * (1 - rows["value"])).groupby([rows[key] for key in (*KEY, "run")])
    return counts.sum().rename("errors").reset_index()


def uninformative(
    wide: pd.DataFrame,
    pair: tuple[str, str],
    errors: pd.DataFrame,
    titles: Mapping[str, str],
    judged: Sequence[str] = (),
) -> str:
    """Return the reason why a comparison says nothing; empty if it says something.

    That is ``X equals Y``, `CEILING` or `FLOOR`. A method that gives to the digit what an earlier
    entry gives adds nothing; that with which all are compared may be any.

    Args:
        wide: Scores, a column for each method in the order of entries.
        pair: The two methods.
        judged: Those of the pair that may not equal an earlier entry.
        titles: Title of each method in the report.
        errors: By method the mean over draws of ``errors``, the wrong test samples of all clients,
            and, if known, of ``floor``, those of the majority predictor.
    """
    order = [*wide]
    for method in judged:
        for earlier in order[: order.index(method)]:
            if wide[method].equals(wide[earlier]):
                return f"{titles[method]} equals {titles[earlier]}"
    counts = errors.reindex([*pair], columns=["errors", "floor"])
    # One error in a sum of shares may be less by its last bits. NaN is not less.
    if (counts["errors"] < 1 - 1e-6).all():
        return CEILING
    return FLOOR if (counts["floor"] - counts["errors"] < 1 - 1e-6).all() else ""


def judged(
    frame: pd.DataFrame, more_is_better: bool = True, margin: float = MARGIN
) -> pd.DataFrame:
    """Add ``p``, ``p_corrected``, ``p_equal`` and ``verdict`` to a table of comparisons.

    ``p`` is of the sign-flip test that the mean is 0, ``p_corrected`` of the same within its
    family. ``p_equal`` is that of two one-sided tests, that the mean is above ``-margin`` and that
    it is below ``margin`` (Schuirmann 1987), corrected likewise: the larger of the two.

    Args:
        frame: ``differences`` and ``reason`` of each comparison, as `tested` gives them, and, if
            there are several, ``family``.
        more_is_better: Whether a larger value of the metric is better.
        margin: NaN if no difference is small.
    """
    frame = frame.assign(p=math.nan, p_corrected=math.nan, p_equal=math.nan)
    in_test = frame[frame["reason"] == ""]
    families = in_test.get("family", pd.Series("", in_test.index))
    # What has too few units for any claim takes no part in the correction of others.
    is_able = in_test["n"].map(max_t.smallest) <= LEVEL
    for _, group in in_test.groupby([families, is_able], sort=False):
        values = _matrix(group["differences"].tolist())
        p_pair = np.column_stack(max_t.p_values(values))
        frame.loc[group.index, ["p", "p_corrected"]] = p_pair
        if math.isfinite(margin):
            shifted = np.vstack([values + margin, margin - values])
            p_sides = max_t.p_values(shifted, one_sided=True)[1].reshape(2, -1)
            frame.loc[group.index, "p_equal"] = p_sides.max(axis=0)
    verdicts = [_verdict(row, more_is_better) for row in frame.to_dict("records")]
    return frame.assign(verdict=pd.Series(verdicts, frame.index, dtype=object))


def _matrix(differences: Sequence[Mapping[Hashable, float]]) -> np.ndarray:
    """Return comparisons x units; NaN where a comparison lacks a unit."""
    units = dict.fromkeys(unit for values in differences for unit in values)
    table = [[values.get(unit, math.nan) for unit in units] for values in differences]
    return np.array(table, float).reshape(len(differences), len(units))


def tested(differences: Sequence[float] | pd.Series, reason: str = "") -> Values:
    """``n``, ``difference`` (the mean), ``low``, ``high``, ``reason``, ``differences`` by unit.

    Args:
        differences: Of two methods, one of each unit; the index of a series names the units, which
            are the same in all comparisons.
        reason: Why they are not tested, if they are not.
    """
    values = pd.Series(differences, dtype="float64")
    low, high = interval(tuple(values))
    return {
        "n": len(values),
        "difference": float(values.mean()),
        "low": low,
        "high": high,
        "reason": reason,
        "differences": values.to_dict(),
    }


def _pairs(
    wide: pd.DataFrame, metric: str, baseline: str | None, contrasts: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Each method with the baseline, then the contrasts; or all pairs, the better one first."""
    if baseline is not None:
        yield from ((str(m), baseline) for m in wide if baseline in wide and m != baseline)
        yield from (pair for pair in contrasts.items() if {*pair} <= {*wide})
        return
    mean_scores = wide.mean().sort_values(ascending=not rising(metric), kind="stable")
    yield from itertools.combinations(mean_scores.index, 2)


def _clients(gain: pd.Series, metric: str) -> Values:
    """Shares of clients, of differences that are indexed by draw, seed and client."""
    clients = gain.groupby(["draw", "client"]).mean() * (1 if rising(metric) else -1)
    # Means of equal accuracies may differ in their last bit; a real difference never is so small.
    return {"better": (clients > 1e-12).mean(), "worse": (clients < -1e-12).mean()}


def verdict_text(row: Mapping[Any, Any]) -> str:
    """The verdict of a row, and in brackets the reason, if there is one."""
    return f"{row['verdict']} ({row['reason']})" if row["reason"] else str(row["verdict"])


def equality_text(row: Mapping[Any, Any]) -> str:
    """Return ``yes`` where a row's methods are equal within `MARGIN`, else nothing."""
    return "yes" if row["p_equal"] <= LEVEL else ""


def _verdict(row: dict[Hashable, Any], more_is_better: bool) -> str:
    if row["reason"]:
        return UNINFORMATIVE
    if not row["p_corrected"] <= LEVEL:
        return OPEN
    return AHEAD if (row["difference"] > 0) == more_is_better else BEHIND
