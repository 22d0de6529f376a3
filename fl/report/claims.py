"""One rule for what a report may claim of two methods.

What is replicated is a *draw* of data or partition. Where a study has one draw of a setting, it is
a training seed, and a test shows what happens if training is repeated, not what holds for other
data. It is never a client, as clients of a run share its model. Two methods are compared by their
differences on the same draws. One is *ahead* only if an exact sign-flip test says so at `LEVEL`,
after Holm's correction over all comparisons of the page.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fl.base.schema import SETTING, rising
from fl.report.summaries import KEY, SettingByScenario, complete, final

LEVEL = 0.05
AHEAD, BEHIND, OPEN, UNINFORMATIVE = "ahead", "behind", "not told apart", "uninformative"
"""What may be said of a comparison."""
DRAW, SEED = "draw", "seed"
"""What is replicated."""
CEILING = "at the ceiling"
COUNTED = ("accuracy", "balanced_accuracy", "macro_f1")
"""Metrics that are 1 only if no test sample is wrong: near 1 they are at the `CEILING`."""

COLUMNS = [
    *KEY,
    *("other", "unit", "n", "difference", "low", "high", "better", "worse"),
    *("p", "p_holm", "verdict", "reason"),
]

Values = dict[str, float | str]
"""Some of `COLUMNS`, for one comparison."""


def sign_flips(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of the exact sign-flip test that the mean is 0.

    It is the share of the 2^n choices of signs under which the mean is at least as far from 0
    (Fisher 1935, section 21); NaN for fewer than two differences.

    Exact up to 16 differences; of more, 2^16 choices are drawn, the same ones in each call.
    """
    from scipy.stats import permutation_test

    if len(differences) < 2:
        return math.nan
    test = permutation_test(
        (np.asarray(differences, float),),
        np.mean,
        permutation_type="samples",
        n_resamples=2**16,
        random_state=0,
    )
    return float(test.pvalue)


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the bootstrap's 95 % interval of the mean (BCa, Efron 1987), the same in each call.

    NaN for so few differences that no test could tell them from 0. The interval is too narrow for
    few differences: of 400 normal samples of six it covers the mean in 88 %, of 400 of thirteen
    in 90 %.
    """
    from scipy.stats import bootstrap

    values = np.asarray(differences, float)
    if smallest(len(values)) > LEVEL:
        return math.nan, math.nan
    if np.ptp(values) < 1e-12:
        return float(values[0]), float(values[0])
    bounds = bootstrap((values,), np.mean, n_resamples=9999, random_state=0).confidence_interval
    return float(bounds.low), float(bounds.high)


def holm(p: Sequence[float]) -> list[float]:
    """p-values corrected for their number by Holm's steps (1979); NaN are no tests, and stay."""
    values = np.asarray(p, float)
    order = np.argsort(values)[: np.isfinite(values).sum()]  # NaN come last.
    corrected = values.copy()
    steps = values[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return [float(value) for value in corrected]


def smallest(n: int) -> float:
    """The smallest p that `sign_flips` can give of ``n`` differences."""
    return float(2.0 ** (1 - n))


def compared(
    rows: pd.DataFrame,
    runs: pd.DataFrame,
    metric: str,
    baseline: str | None,
    contrasts: Mapping[str, str] | None = None,
    *,
    settings: SettingByScenario,
) -> pd.DataFrame:
    """Return comparisons of each method with ``baseline``, or of all pairs; columns `COLUMNS`.

    ``dataset``, ``partition`` and ``model`` are without the seeds of draws. ``difference`` is the
    mean over ``n`` units (``unit``: `DRAW` or `SEED`) that both methods have, each by its mean over
    clients and seeds; ``low`` and ``high`` bound it (`interval`). ``better`` and ``worse``: shares
    of clients, each of a draw by its mean over seeds. ``p_holm`` is corrected over all rows.

    A comparison is `UNINFORMATIVE`, and not tested, if a method gives to the digit what an earlier
    entry gives, or if both err on less than one test sample of a draw.
    """
    last = complete(final(rows, metric), runs)
    last = last.assign(
        draw=pd.Series([*last[SETTING].itertuples(index=False, name=None)], last.index)
    )
    counted = complete(final(rows, "accuracy"), runs) if metric in COUNTED else last.iloc[:0]
    wrong = wrong_samples(counted)
    titles = dict(zip(runs["method"], runs["title"], strict=True))
    records: list[Values] = []
    for setting, group in last.groupby(last["draw"].map(settings), sort=False):
        has_draws = sum(second == setting for second in settings.values()) > 1
        unit = DRAW if has_draws else SEED
        order = [method for method in runs["method"].unique() if method in set(group["method"])]
        by_method = group.set_index(["draw", "seed", "client", "method"])["value"]
        wide = by_method.unstack("method")[order]
        places = wrong[SETTING].itertuples(index=False, name=None)
        in_setting = [settings[place] == setting for place in places]
        errors = wrong.loc[in_setting].groupby("method")["errors"].mean().to_dict()
        for first, second in _pairs(wide, metric, baseline, contrasts or {}):
            key = dict(zip(KEY, (*setting, first), strict=True))
            gain = (wide[first] - wide[second]).dropna()
            if len(gain):
                judged_here = (first,) if second == baseline else (first, second)
                reason = uninformative(wide, (first, second), errors, titles, judged_here)
                about: Values = {**key, "other": second, "unit": unit, **_clients(gain, metric)}
                units = gain.groupby(["draw", "seed"]).mean().groupby(unit).mean()
                records.append(about | tested(units.tolist(), reason))
    frame = pd.DataFrame(records, columns=[c for c in COLUMNS if c not in ("p_holm", "verdict")])
    return judged(frame, rising(metric))[COLUMNS]


def wrong_samples(rows: pd.DataFrame) -> pd.DataFrame:
    """Return ``errors``, the wrong samples of all clients, by setting, method and run.

    Args:
        rows: Final rows of the accuracy of clients.
    """
    wrong = (rows["n"] * (1 - rows["value"])).groupby([rows[key] for key in (*KEY, "run")])
    return wrong.sum().rename("errors").reset_index()


def uninformative(
    wide: pd.DataFrame,
    pair: tuple[str, str],
    errors: Mapping[Any, float],
    titles: Mapping[str, str],
    judged: Sequence[str] = (),
) -> str:
    """Return the reason why a comparison says nothing, ``X equals Y`` or `CEILING`; else nothing.

    A method that gives to the digit what an earlier entry gives adds nothing; that with which all
    are compared may be any.

    Args:
        wide: Scores, a column for each method in the order of entries.
        pair: The two methods.
        judged: Those of the pair that may not equal an earlier entry.
        titles: Title of each method in the report.
        errors: Wrong test samples of all clients by method, mean over draws; without those that are
            not known.
    """
    order = [*wide]
    for method in judged:
        for earlier in order[: order.index(method)]:
            if wide[method].equals(wide[earlier]):
                return f"{titles[method]} equals {titles[earlier]}"
    # One error in a sum of shares may be less by its last bits.
    return CEILING if all(errors.get(m, math.inf) < 1 - 1e-6 for m in pair) else ""


def judged(frame: pd.DataFrame, more_is_better: bool = True) -> pd.DataFrame:
    """Add ``p_holm``, corrected over all rows, and ``verdict`` to a table of comparisons.

    Args:
        frame: ``difference``, ``p`` and ``reason`` of each comparison, as `tested` gives them.
        more_is_better: Whether a larger value of the metric is better.
    """
    frame = frame.assign(p_holm=holm(frame["p"].astype(float).tolist()))
    verdicts = [_verdict(row, more_is_better) for row in frame.to_dict("records")]
    return frame.assign(verdict=pd.Series(verdicts, frame.index, dtype=object))


def tested(differences: Sequence[float], reason: str = "") -> Values:
    """``n``, ``difference`` (the mean), ``low``, ``high``, ``p``, ``reason``.

    Args:
        differences: Of two methods, one of each unit.
        reason: Why they are not tested, if they are not.
    """
    low, high = interval(differences)
    p = math.nan if reason else sign_flips(differences)
    mean = float(np.mean(differences))
    return {
        "n": len(differences),
        "difference": mean,
        "low": low,
        "high": high,
        "p": p,
        "reason": reason,
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


def _verdict(row: dict[Hashable, Any], more_is_better: bool) -> str:
    if row["reason"]:
        return UNINFORMATIVE
    if not row["p_holm"] <= LEVEL:
        return OPEN
    return AHEAD if (row["difference"] > 0) == more_is_better else BEHIND
