"""What may be claimed of the time and the bytes that methods take to a value of the metric.

Methods are compared by the one rule of `fl.report.claims`, on logarithms, since a ratio of times is
what is claimed. A run is looked at in evaluated rounds, and it may end before it reaches the value.
So its time is only known to lie between the last evaluated round without the value and the first
one with it; the latter is infinite if there is none. A method is ahead only if that holds for all
these times: it counts with the later end, the other method with the earlier one. So a method that
misses the value in any run, or diverges, is never ahead, and rare evaluations are no help.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from fl.base.schema import DIVERGED, SETTING, SHARES, rising
from fl.report import claims
from fl.report.cells import NOTHING, Table, multiple, number, probability
from fl.report.claims_tables import MOST_PAIRS
from fl.report.facts import Facts
from fl.report.method_tables import Record, Show, by_setting
from fl.report.summaries import KEY

GOAL = 0.95
"""Share of the best method's final value to which time is counted, if a study names no value."""

AMOUNTS = {"seconds": "times", "bytes": "bytes"}
"""What is claimed by column, in words."""

BOTH_MISS = "both miss it"
"""Reason why a comparison says nothing: each method has a run that does not reach the value."""


def goal_text(facts: Facts) -> str:
    """Return the value to which time is counted in words."""
    if facts.plan.goal is None:
        return f"{100 * GOAL:g} % of the best"
    percent = " %" if facts.metric in SHARES else ""
    return f"{facts.metric.replace('_', ' ')} {number(facts.plan.goal, facts.metric)}{percent}"


def times_to_goal(facts: Facts, lines: pd.DataFrame) -> pd.DataFrame:
    """Return the time and the bytes that each run takes to the value.

    Args:
        facts: The study.
        lines: `Facts.timed_curves`.

    Returns:
        By setting, method and run: ``reaches``, whether the run reaches the value;
        ``goal_seconds`` and ``goal_bytes`` until the first evaluated round with it, or of the whole
        run; ``missed_seconds`` and ``missed_bytes`` until the last round before without it, or 0.
    """
    up, records = rising(facts.metric), []
    for _, setting in lines.groupby(SETTING, sort=False, observed=True):
        last = setting.groupby(["method", "run"], sort=False, observed=True)["value"].last()
        finals = last.groupby("method", sort=False, observed=True).mean()
        goal = facts.plan.goal
        if goal is None:
            goal = GOAL * finals.max() if up else finals.min() / GOAL
        for key, run in setting.groupby([*KEY, "run"], sort=False, observed=True):
            values = run["value"]
            is_there = (values >= goal - 1e-12 if up else values <= goal + 1e-12).to_numpy()
            count = int(is_there.argmax()) if is_there.any() else len(run)
            at = run.iloc[min(count, len(run) - 1)]
            record = dict(zip([*KEY, "run"], key, strict=True))
            for column in AMOUNTS:
                missed = run[column].iloc[count - 1] if count else 0.0
                record |= {f"goal_{column}": at[column], f"missed_{column}": missed}
            records.append(record | {"reaches": bool(is_there.any())})
    return pd.DataFrame(records).set_index([*KEY, "run"])


def goal_claims(facts: Facts, times: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the comparisons of methods by time or by bytes, a family of its own.

    Args:
        facts: The study.
        times: `times_to_goal`.
        column: ``seconds`` or ``bytes``.

    Returns:
        A row for each comparison: `KEY`, ``other``, ``unit``, ``n``, the p-values and ``verdict``
        of `fl.report.claims.with_verdicts`, ``ratio`` (see `_ratio`), and ``difference``: the mean
        logarithm of the least ratio that the times allow, if one method is ahead; else 0.
    """
    settings, records = facts.setting_by_scenario, []
    frame = times.reset_index().merge(facts.runs[["method", "run", "seed"]], on=["method", "run"])
    scenarios = [*frame[SETTING].itertuples(index=False, name=None)]
    frame["draw"] = pd.Series(scenarios, frame.index)
    with np.errstate(divide="ignore"):
        frame["seconds"] = np.log(frame["goal_seconds"])
        frame["time"] = np.log(frame[f"goal_{column}"])
        frame["least"] = np.log(frame[f"missed_{column}"])
    frame["most"] = frame["time"].where(frame["reaches"], math.inf)
    lost = facts.runs[facts.runs["selected"] & (facts.runs["state"] == DIVERGED)]
    diverged = {
        (settings[dataset, partition, model], method)
        for dataset, partition, model, method in lost[KEY].itertuples(index=False, name=None)
    }
    for setting, group in frame.groupby(frame["draw"].map(settings), sort=False):
        wide = group.pivot(index=["draw", "seed"], columns="method")
        time, least, most = (pd.DataFrame(wide[name]) for name in ("time", "least", "most"))
        order = [method for method in facts.methods if method in {*group["method"]}]
        # A run that diverges has no time, and never reaches the value.
        most = most.assign(**{m: math.inf for m in order if (setting, m) in diverged})
        seconds = pd.DataFrame(wide["seconds"])[order]
        pairs = claims.method_pairs(seconds, False, facts.plan.baseline, facts.plan.contrasts)
        for method, other in pairs:
            there = time[[method, other]].dropna().index
            if there.empty:
                continue
            misses = [bool(np.isinf(most.loc[there, name]).any()) for name in (method, other)]
            low = claims.over_units((least[other] - most[method])[there], setting, settings)[1]
            high = claims.over_units((most[other] - least[method])[there], setting, settings)[1]
            unit, exact = claims.over_units((time[other] - time[method])[there], setting, settings)
            # The least difference in favour of a method; 0 if that favours neither.
            units = low if low.mean() > 0 else high if high.mean() < 0 else 0 * exact
            record = dict(zip(KEY, (*setting, method), strict=True)) | {"other": other}
            record |= {"unit": unit, "ratio": _ratio(float(exact.mean()), *misses)}
            reason = BOTH_MISS if all(misses) else ""
            records.append(record | claims.comparison_values(units, reason))
    columns = [*KEY, "other", "unit", "ratio", *claims.VALUE_COLUMNS]
    return claims.with_verdicts(pd.DataFrame(records, columns=columns), margin=math.nan)


def _ratio(logarithm: float, method_misses: bool, other_misses: bool) -> str:
    """Return how much more the other method takes, ``2.1``; a bound if only one misses the value.

    Args:
        logarithm: Mean logarithm of the ratio, in which such runs count with their whole time.
        method_misses: Whether a run of the method does not reach the value.
        other_misses: Whether a run of the other one does not.
    """
    if method_misses and other_misses:
        return NOTHING
    return f"{'< ' * method_misses}{'> ' * other_misses}{multiple(math.exp(logarithm))}"


def goal_claims_table(facts: Facts) -> Table | None:
    """Return the table of what may be claimed of time and bytes; None if nothing is compared."""
    lines = facts.timed_curves
    if lines.empty:
        return None
    baseline, times = facts.plan.baseline, times_to_goal(facts, lines)
    by_time, by_bytes = (goal_claims(facts, times, column) for column in AMOUNTS)
    pair = [*KEY, "other", "unit", "n"]
    frame = by_time.merge(by_bytes, on=pair, suffixes=("_seconds", "_bytes"))
    if frame.empty or (baseline is None and len(frame) > MOST_PAIRS):
        return None
    shown: dict[str, Show] = {}
    if not (frame["other"] == baseline).all():
        shown |= {"from": lambda row: facts.methods[row["other"]]}
    for column, amount in AMOUNTS.items():
        shown |= {
            f"ratio of\n{amount}": _shown_ratio(column),
            f"corrected p\nof {amount}": _shown_p(column),
            f"verdict\non {amount}": _shown_verdict(column),
        }
    shown |= {"over": lambda row: f"{row['n']} {row['unit']}s"}
    against = f"that of {facts.methods[baseline]}" if baseline else "that of another method"
    caption = (
        f"Time and bytes to {goal_text(facts)}: {against} divided by the method's own, geometric "
        "mean. Above 1 the method takes less."
    )
    note = (
        "Ahead or behind: the corrected p is at most "
        f"{claims.LEVEL}, for the least favourable times that evaluated rounds allow. The method "
        "that is ahead reaches the value in all runs, of which none diverges, and counts with the "
        "first evaluated round there; the other one with its last evaluated round before, or with "
        "its whole time if it never gets there. At least, at most: the ratio of these times. > and "
        "<: runs that do not reach the value count with their whole time. p: "
        f"{claims.test_rule(frame)}, corrected by step-down maxT for all comparisons of times, "
        "and for all of bytes."
    )
    smallest = claims.smallest_p(int(frame["n"].max()))
    if smallest > claims.LEVEL:
        note += f" The smallest possible p-value is {smallest:.3g}."
    text = ("from", *(f"verdict\non {amount}" for amount in AMOUNTS.values()))
    return by_setting(facts, "clock-claims", caption, frame, shown, text, note=note)


def _shown_ratio(column: str) -> Show:
    def say(row: Record) -> str:
        bound = {claims.AHEAD: "at least", claims.BEHIND: "at most"}.get(row[f"verdict_{column}"])
        least = multiple(math.exp(row[f"difference_{column}"]))
        return f"{row[f'ratio_{column}']}{f' ({bound} {least})' if bound else ''}"

    return say


def _shown_p(column: str) -> Show:
    return lambda row: probability(row[f"p_corrected_{column}"])


def _shown_verdict(column: str) -> Show:
    keys = ("verdict", "reason")
    return lambda row: claims.verdict_text({key: row[f"{key}_{column}"] for key in keys})
