"""One rule for what a report may claim of two methods.

What is replicated is a *draw* of data or partition. Where a study has one draw of a setting, it is
a training seed, and a test shows what happens if training is repeated, not what holds for other
data. It is never a client, as clients of a run share its model; claims about clients are made by
`fl.report.client_tests`. Two methods are compared by their differences on the same draws. One is
*ahead* only if the sign-flip test says so at `LEVEL` after the step-down maxT correction
(`p_values`) over all comparisons of its family, which is named before results are seen: those of a
page.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtr

from fl.base.schema import BY_CLASS, GLOBAL, SETTING, SHARES, StudySetting, rising
from fl.report.partitions import Partition
from fl.report.summaries import KEY, SettingByScenario, complete_rows, final_rows

MAX_EXACT_DRAWS = 13
"""Number of draws up to which all flips are counted."""
RANDOM_FLIPS, FLIP_SEED = 2**16 - 1, 0
"""Number and seed of the flips that are drawn for more draws."""
FLIP_BLOCK = 2**13
"""Number of flips that are held in memory at once."""


LEVEL = 0.05
"""Largest corrected p-value with which a method is called ahead or behind."""

AHEAD, BEHIND, OPEN, UNINFORMATIVE = "ahead", "behind", "not told apart", "uninformative"
"""Verdicts of a comparison."""

DRAW, SEED = "draw", "seed"
"""Kinds of replicates."""

CEILING, FLOOR = "at the ceiling", "at the majority class"
"""Reasons why a comparison says nothing: both methods make no error, or predict the majority."""

MARGIN = 0.01
"""Two methods whose shares differ by less are equal in practice."""

COUNTED = ("accuracy", "balanced_accuracy", "macro_f1")
"""Metrics that are 1 only if no test sample is wrong: near 1 they are at the `CEILING`, and
with the errors of the majority predictor at the `FLOOR`.
"""

COMPARISON_COLUMNS = [
    *KEY,
    *("other", "unit", "n", "difference", "low", "high", "better", "worse"),
    *("p", "p_corrected", "p_equal", "verdict", "reason", "differences"),
]

VALUE_COLUMNS = ["n", "difference", "low", "high", "reason", "differences"]
"""Columns that `comparison_values` returns."""

Values = dict[str, Any]
"""Some of `COMPARISON_COLUMNS`, for one comparison."""


def flip_rule(units: int, unit_text: str = f"{DRAW}s") -> str:
    """Return the test with so many draws or seeds in words.

    Args:
        units: Number of draws or seeds, which decides how flips are found.
        unit_text: The unit that is counted, in the plural.
    """
    test = "exact sign-flip test"
    if units > MAX_EXACT_DRAWS:
        test = f"sign-flip test with {RANDOM_FLIPS:,} random flips, seed {FLIP_SEED}"
    return f"{test}, of Student's t over {unit_text}"


def test_rule(frame: pd.DataFrame) -> str:
    """Return the test of `COMPARISON_COLUMNS` in words."""
    return flip_rule(int(frame["n"].max()), " and ".join(f"{u}s" for u in frame["unit"].unique()))


def smallest_p(units: int) -> float:
    """Return the smallest two-sided p-value that so many draws can give."""
    return 2.0 ** (1 - units) if units <= MAX_EXACT_DRAWS else 1 / (RANDOM_FLIPS + 1)


def p_values(differences: np.ndarray, one_sided: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return the p-value of each comparison that its mean is 0, alone and corrected for all.

    The correction is step-down maxT over sign flips: Westfall, Young. Resampling-Based Multiple
    Testing. Wiley 1993; Fisher. The Design of Experiments. Oliver and Boyd 1935.

    Where two methods are alike, the sign of their difference on a draw is that of a fair coin. A
    flip is one choice of signs, one for each draw, and the same for all comparisons, which keeps
    what they have in common. The statistic is Student's t of the differences: a mean alone would
    let the comparisons with the largest spread decide for all. It counts by its tail in the t
    distribution of its degrees of freedom, since t alone would let the comparisons with the fewest
    draws do so.

    For the k-th rarest t, the corrected p-value is the share of flips in which some t, of this or a
    less rare comparison, is at least as rare; it is never below that of a rarer t. Flips whose t
    is lower by rounding only count too.

    Args:
        differences: Differences of two methods, [comparisons, draws]; NaN if one is missing.
        one_sided: Whether the alternative is a mean above 0 instead of a mean other than 0.

    Returns:
        Two arrays of p-values, [comparisons]; NaN for fewer than two differences.
    """
    is_finite = np.isfinite(differences)
    values, count = np.where(is_finite, differences, 0.0), is_finite.sum(axis=1)
    # Flips leave the sum of squares as it is, so that t rises with this share of its root.
    scale = np.sqrt(count * (values**2).sum(axis=1))
    weights = np.divide(values, scale[:, None], out=np.zeros_like(values), where=scale[:, None] > 0)

    def shares(signs: np.ndarray) -> np.ndarray:
        sums: np.ndarray = signs @ weights.T
        return sums if one_sided else np.abs(sums)

    def surprise(share: np.ndarray) -> np.ndarray:
        """Return how rare t is: minus its tail, from -1 to 0; -1 where there is no t."""
        with np.errstate(divide="ignore", invalid="ignore"):
            t = share * np.sqrt((count - 1) / np.maximum(1 - share**2, 0))
        return np.where(count > 1, -stdtr(count - 1, -t), -1.0)

    observed = shares(np.ones((1, values.shape[1])))[0]
    limit = surprise(observed - 1e-9)
    order = np.argsort(-limit, kind="stable")
    single, joint, flips = np.zeros(len(values)), np.zeros(len(values)), 0
    for signs in _flips(values.shape[1]):
        flipped = surprise(shares(signs))
        largest = np.maximum.accumulate(flipped[:, order[::-1]], axis=1)[:, ::-1]
        single += (flipped >= limit).sum(axis=0)
        joint[order] += (largest >= limit[order]).sum(axis=0)
        flips += len(signs)
    corrected = np.empty(len(values))
    corrected[order] = np.maximum.accumulate(joint[order] / flips)
    is_test = count > 1
    return np.where(is_test, single / flips, np.nan), np.where(is_test, corrected, np.nan)


def _flips(units: int) -> Iterator[np.ndarray]:
    """Yield signs in blocks [flips, draws]: all flips, or random ones after one without changes."""
    if units <= MAX_EXACT_DRAWS:
        yield np.array([*itertools.product((1.0, -1.0), repeat=units)])
        return
    yield np.ones((1, units))
    generator = np.random.default_rng(FLIP_SEED)
    for start in range(0, RANDOM_FLIPS, FLIP_BLOCK):
        size = (min(FLIP_BLOCK, RANDOM_FLIPS - start), units)
        yield generator.integers(0, 2, size) * 2.0 - 1


def majority_errors(
    rows: pd.DataFrame,
    runs: pd.DataFrame,
    partitions: Mapping[str, Partition],
    all_samples: bool = False,
    unseen: bool = False,
) -> pd.DataFrame:
    """Return ``errors``, the wrong samples of the majority predictor, by setting, method and run.

    It predicts the most frequent training class: that of all clients if a shared model is scored,
    that of each client if its own model is. Runs whose partition is not known are left out.

    Args:
        rows: Final rows of the accuracy of clients.
        runs: Table of runs.
        partitions: Partitions by id.
        all_samples: Whether models are scored on the test samples of all clients.
        unseen: Whether the rows are of clients that are held out of training.
    """
    partition_of = dict(zip(runs["run"], runs["partition_id"], strict=True))
    records = []
    for key, group in rows.groupby([*KEY, "run"], sort=False):
        partition = partitions.get(partition_of[group["run"].iloc[0]])
        if partition is None or not partition.by_class:
            continue
        is_shared = bool((group["stage"] == GLOBAL).all())
        hits = group["client"].map(partition.majority(all_samples, is_shared, unseen))
        count = float((group["n"] * (1 - hits)).sum(skipna=False))
        records.append(dict(zip([*KEY, "run", "errors"], (*key, count), strict=True)))
    return pd.DataFrame(records, columns=[*KEY, "run", "errors"])


@functools.lru_cache(4096)
def interval(differences: tuple[float, ...]) -> tuple[float, float]:
    """Return the bootstrap's 95 % interval of the mean (BCa, Efron 1987), the same in each call.

    NaN for so few differences that no test could be significant. The interval is too narrow for
    few differences: of 400 normal samples of six it covers the mean in 88 %, of 400 of thirteen
    in 90 %.
    """
    values = np.asarray(differences, float)
    if smallest_p(len(values)) > LEVEL:
        return math.nan, math.nan
    if np.ptp(values) < 1e-12:
        return float(values[0]), float(values[0])
    from scipy.stats import bootstrap  # 0.7 s of imports, where they are needed.

    bounds = bootstrap((values,), np.mean, n_resamples=9999, random_state=0).confidence_interval
    return float(bounds.low), float(bounds.high)


def compare_methods(
    rows: pd.DataFrame,
    runs: pd.DataFrame,
    metric: str,
    baseline: str | None,
    contrasts: Mapping[str, str] | None = None,
    *,
    settings: SettingByScenario,
    floors: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return `COMPARISON_COLUMNS` of each method and ``baseline``, or of all pairs.

    ``dataset``, ``partition`` and ``model`` are without the seeds of draws. ``difference`` is the
    mean over the ``n`` units (``unit``: `DRAW` or `SEED`) that both methods have; the value of a
    unit is a mean over clients and seeds. ``low`` and ``high`` bound the difference (`interval`).
    ``differences`` has the differences by number of the draw or seed. ``better`` and ``worse`` are
    the shares of clients with a better and a worse mean over seeds. ``p_corrected`` and ``p_equal``
    (`with_verdicts`) are corrected for all rows.

    A comparison is `UNINFORMATIVE`, and not tested, if a method has exactly the values of another
    entry before it, if both methods are wrong on less than one test sample of a draw, or if both
    are wrong as often as the majority predictor.

    Args:
        rows: Table of values.
        runs: Table of runs.
        metric: The metric.
        baseline: The entry with which methods are compared; None: all pairs are compared.
        contrasts: Further pairs: the second entry by the first.
        settings: Setting of each data set, partition and model.
        floors: Errors of the majority predictor, as far as known, see `majority_errors`.
    """
    last = complete_rows(final_rows(rows, metric), runs)
    last = last.assign(
        draw=pd.Series([*last[SETTING].itertuples(index=False, name=None)], last.index)
    )
    counted = (
        complete_rows(final_rows(rows, "accuracy"), runs) if metric in COUNTED else last.iloc[:0]
    )
    error_counts = wrong_samples(counted)
    if floors is not None:
        error_counts = error_counts.merge(floors.rename(columns={"errors": "floor"}), how="left")
    titles = dict(zip(runs["method"], runs["title"], strict=True))
    records: list[Values] = []
    for setting, group in last.groupby(last["draw"].map(settings), sort=False):
        order = [method for method in runs["method"].unique() if method in set(group["method"])]
        by_method = group.set_index(["draw", "seed", "client", "method"])["value"]
        wide = by_method.unstack("method")[order]
        places = error_counts[SETTING].itertuples(index=False, name=None)
        in_setting = [settings[place] == setting for place in places]
        mean_errors = error_counts.loc[in_setting].groupby("method").mean(numeric_only=True)
        for first, second in method_pairs(wide, rising(metric), baseline, contrasts or {}):
            key = dict(zip(KEY, (*setting, first), strict=True))
            gain = (wide[first] - wide[second]).dropna()
            if len(gain):
                judged_here = (first,) if second == baseline else (first, second)
                reason = uninformative_reason(
                    wide, (first, second), mean_errors, titles, judged_here
                )
                unit, units = over_units(gain, setting, settings)
                about: Values = {**key, "other": second, "unit": unit, **_clients(gain, metric)}
                records.append(about | comparison_values(units, reason))
    columns = [*KEY, "other", "unit", "better", "worse", *VALUE_COLUMNS]
    frame = pd.DataFrame(records, columns=columns)
    return with_verdicts(frame, rising(metric), margin(metric))[COMPARISON_COLUMNS]


def over_units(
    gain: pd.Series, setting: StudySetting, settings: SettingByScenario
) -> tuple[str, pd.Series]:
    """Return the unit of a setting, `DRAW` or `SEED`, and the mean of each unit.

    Args:
        gain: Differences of two methods in a setting, with the levels ``draw`` and ``seed``.
        setting: The setting.
        settings: Setting of each data set, partition and model.
    """
    # Draws of all settings have the same numbers, so that their signs are flipped together.
    draws = [scenario for scenario in settings if settings[scenario] == setting]
    unit = DRAW if len(draws) > 1 else SEED
    units = gain.groupby(["draw", "seed"]).mean().groupby(unit).mean()
    if unit == DRAW:
        units.index = pd.Index([draws.index(draw) for draw in units.index])
    return unit, units


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


def uninformative_reason(
    wide: pd.DataFrame,
    pair: tuple[str, str],
    errors: pd.DataFrame,
    titles: Mapping[str, str],
    judged: Sequence[str] = (),
) -> str:
    """Return the reason why a comparison says nothing; empty if it says something.

    The reason is ``X equals Y``, `CEILING` or `FLOOR`. A method that reproduces an earlier entry
    exactly is not tested; the baseline is exempt.

    Args:
        wide: Scores, a column for each method in the order of entries.
        pair: The two methods.
        judged: Those of the pair that may not equal an earlier entry.
        titles: Title of each method in the report.
        errors: Means over draws, by method: ``errors``, the wrong test samples of all clients, and,
            if known, ``floor``, those of the majority predictor.
    """
    order = [*wide]
    for method in judged:
        for earlier in order[: order.index(method)]:
            if wide[method].equals(wide[earlier]):
                return f"{titles[method]} equals {titles[earlier]}"
    counts = errors.reindex([*pair], columns=["errors", "floor"])
    # A sum of shares may be off in its last bits. Comparisons with NaN are false.
    if (counts["errors"] < 1 - 1e-6).all():
        return CEILING
    return FLOOR if (counts["floor"] - counts["errors"] < 1 - 1e-6).all() else ""


def with_verdicts(
    frame: pd.DataFrame, more_is_better: bool = True, margin: float = MARGIN
) -> pd.DataFrame:
    """Add ``p``, ``p_corrected``, ``p_equal`` and ``verdict`` to a table of comparisons.

    ``p`` is the p-value of the sign-flip test that the mean is 0; ``p_corrected`` is corrected for
    all comparisons of the family. ``p_equal`` is the larger one of two one-sided tests, that the
    mean is above ``-margin`` and that it is below ``margin`` (Schuirmann 1987), corrected likewise.

    Args:
        frame: ``differences`` and ``reason`` of each comparison, see `comparison_values`.
        more_is_better: Whether a larger value of the metric is better.
        margin: Difference below which methods are equal in practice; NaN: none is.
    """
    frame = frame.assign(p=math.nan, p_corrected=math.nan, p_equal=math.nan)
    in_test = frame[frame["reason"] == ""]
    # Comparisons with too few units for any claim do not count in the correction of others.
    is_able = in_test["n"].map(smallest_p) <= LEVEL
    for _, group in in_test.groupby(is_able, sort=False):
        values = _matrix(group["differences"].tolist())
        p_pair = np.column_stack(p_values(values))
        frame.loc[group.index, ["p", "p_corrected"]] = p_pair
        if math.isfinite(margin):
            shifted = np.vstack([values + margin, margin - values])
            p_sides = p_values(shifted, one_sided=True)[1].reshape(2, -1)
            frame.loc[group.index, "p_equal"] = p_sides.max(axis=0)
    verdicts = [_verdict(row, more_is_better) for row in frame.to_dict("records")]
    return frame.assign(verdict=pd.Series(verdicts, frame.index, dtype=object))


NO_CHANGE = "no verdict changes"
"""Text where all verdicts stay."""


def changed_verdicts(tests: pd.DataFrame, repetition: pd.DataFrame, place: Sequence[str]) -> str:
    """Return in words which verdicts change with other values: ``no verdict changes``.

    Args:
        tests: The comparisons.
        repetition: The same comparisons with other values.
        place: Columns that identify a comparison, with ``method`` and ``other``; those with several
            values are named.
    """
    pairs = tests.merge(repetition, on=[*place, "method", "other"], suffixes=("", "_now"))
    changed = pairs[pairs["verdict"] != pairs["verdict_now"]]
    named = [key for key in place if tests[key].nunique() > 1]
    texts = [
        f"{''.join(f'{row[key]}, ' for key in named)}{row['method']} from {row['other']}: "
        f"{row['verdict_now']}, not {row['verdict']}"
        for row in changed.to_dict("records")
    ]
    return f"these verdicts change: {'; '.join(texts)}" if texts else NO_CHANGE


def _matrix(differences: Sequence[Mapping[Hashable, float]]) -> np.ndarray:
    """Return differences, [comparisons, units]; NaN if a comparison lacks a unit."""
    units = dict.fromkeys(unit for values in differences for unit in values)
    table = [[values.get(unit, math.nan) for unit in units] for values in differences]
    return np.array(table, float).reshape(len(differences), len(units))


def comparison_values(differences: Sequence[float] | pd.Series, reason: str = "") -> Values:
    """Return the `VALUE_COLUMNS` of one comparison; ``difference`` is the mean.

    Args:
        differences: Differences of two methods, one for each unit; the index of a series has the
            names of units, which are the same in all comparisons.
        reason: Why the comparison is not tested; empty if it is.
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


def method_pairs(
    wide: pd.DataFrame, more_is_better: bool, baseline: str | None, contrasts: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield each method with the baseline, then contrasts; or all pairs, the better one first.

    Args:
        wide: Values, a column for each method.
        more_is_better: Whether a larger value is better.
        baseline: The entry with which methods are compared; None: all pairs are compared.
        contrasts: Further pairs: the second entry by the first.
    """
    if baseline is not None:
        yield from ((str(m), baseline) for m in wide if baseline in wide and m != baseline)
        yield from (pair for pair in contrasts.items() if {*pair} <= {*wide})
        return
    mean_scores = wide.mean().sort_values(ascending=not more_is_better, kind="stable")
    yield from itertools.combinations(mean_scores.index, 2)


def _clients(gain: pd.Series, metric: str) -> Values:
    """Return shares of clients for whom a method is better or worse, by draw, seed and client."""
    clients = gain.groupby(["draw", "client"]).mean() * (1 if rising(metric) else -1)
    # Means of equal accuracies may differ in their last bit; real differences are larger.
    return {"better": (clients > 1e-12).mean(), "worse": (clients < -1e-12).mean()}


def leaders(
    comparisons: pd.DataFrame, summary: pd.DataFrame, baseline: str | None
) -> set[tuple[str, ...]]:
    """Return the entries that no other is ahead of, as setting and method.

    If entries are compared with a ``baseline`` and some are ahead of it, only those can lead: it is
    not known how they compare with entries that are not. An entry with exactly the values of
    another one shares its verdicts. There is no leader where no comparison could be significant.

    Args:
        comparisons: `COMPARISON_COLUMNS`.
        summary: Summaries by setting and method, see `fl.report.summaries.summarise`.
        baseline: The study's baseline.
    """
    tests = comparisons[is_testable(comparisons)]
    leading: set[tuple[str, ...]] = set()
    for setting, group in summary[summary["mean"].notna()].groupby(SETTING, sort=False):
        in_setting = tests[(tests[SETTING] == list(setting)).all(axis=1)]
        if in_setting.empty:
            continue
        is_ahead, is_behind = in_setting["verdict"] == AHEAD, in_setting["verdict"] == BEHIND
        beaten = {*in_setting.loc[is_ahead, "other"], *in_setting.loc[is_behind, "method"]}
        ahead = {*in_setting.loc[is_ahead & (in_setting["other"] == baseline), "method"]}
        for _, twins in group.groupby(["mean", "sd_clients", "worst", "p10"], dropna=False):
            for kind in (beaten, ahead):
                if kind & {*twins["method"]}:
                    kind |= {*twins["method"]}
        best = ahead - beaten or {*group["method"]} - beaten
        leading |= {(*map(str, setting), method) for method in best}
    return leading


def is_testable(comparisons: pd.DataFrame) -> pd.Series:
    """Return whether each comparison is tested over enough draws or seeds to be significant."""
    return comparisons["p"].notna() & (comparisons["n"].map(smallest_p) <= LEVEL)


def verdict_text(row: Mapping[Any, Any]) -> str:
    """Return the verdict of a row, with the reason in brackets, if there is one."""
    return f"{row['verdict']} ({row['reason']})" if row["reason"] else str(row["verdict"])


def equality_text(row: Mapping[Any, Any]) -> str:
    """Return ``yes`` if a row's methods are equal within `MARGIN`, else an empty text."""
    return "yes" if row["p_equal"] <= LEVEL else ""


def _verdict(row: dict[Hashable, Any], more_is_better: bool) -> str:
    if row["reason"]:
        return UNINFORMATIVE
    if not row["p_corrected"] <= LEVEL:
        return OPEN
    return AHEAD if (row["difference"] > 0) == more_is_better else BEHIND
