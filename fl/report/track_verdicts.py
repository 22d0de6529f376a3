"""Verdicts on the entries of a track by its kept results, beside baselines of its file.

An entry is compared with its family's baseline over clients and draws (`fl.report.client_tests`).
Of an entry that tuning switched off nothing is tested; one that fails in some draw is unstable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fl.base.schema import COMPLETE, DIVERGED
from fl.plan.track import Family, Track
from fl.report import claims, client_tests
from fl.report.kept_tracks import TrackResults, entry_values, floor_values
from fl.report.tables import HYPER

NO_OP, EQUAL, MISSING_RUN = "no-op", "equal", "no verdict"


UNSTABLE = "unstable"
"""Verdicts beside those of `fl.report.claims`."""


CLOSE = 1.01
"""Costs of which one is at most this multiple of the other are equal, as an entry may send a few
numbers beside the weights.
"""


SAME = 1e-6
"""Mean difference of a client up to which two methods do equally well, as kept values are rounded.
"""


COMPARISON_COLUMNS = [
    *("family", "entry", "other", "clients", "n", "blocks", "difference", "low", "high"),
    *("p", "p_models", "p_draws", "p_equal", "better", "worse", "skew", "verdict"),
]
"""Columns of the comparisons of entries, see `verdicts`."""


def verdicts(
    results: TrackResults,
    track: Track,
    budget: int = 1,
    levels: Sequence[float] = (claims.LEVEL,),
) -> pd.DataFrame:
    """Return a row for each comparison of the families of a track.

    Args:
        results: The results of the track.
        track: The track.
        budget: The budget.
        levels: Levels near which p-values are computed of more flips.

    Returns:
        `COMPARISON_COLUMNS` and those named last. ``n`` is the number of clients, and ``blocks``
        that of their blocks; NaN without blocks. ``difference`` is the mean over clients of the
        gain of ``entry`` on ``other`` (less of an error is a gain), with its bounds ``low`` and
        ``high``. Corrected p-values are ``p`` (clients and draws), ``p_models``
        (clients alone), ``p_draws`` (draws alone) and ``p_equal``; all but ``p_draws`` take blocks,
        where there are some, in place of clients. ``better`` and ``worse`` are shares of clients,
        ``skew`` is the skewness of clients' mean differences (or of their sums in blocks),
        ``no_op`` is the entry that it equals, and costs are multiples of those of ``other``.
        ``points`` and ``points_of_other`` are the numbers of points that were tried for both, and
        ``without_no_op`` what tuning without the no-op would have changed (`loss_without_no_op`).
        ``failed`` is the number of draws in which the entry diverged, or is not better than the
        floor where ``other`` is; with one, the verdict is `UNSTABLE`, unless it is behind: a test
        over clients and draws takes one lost draw for a large spread of all.
    """
    tables = [
        _family_verdicts(results, track, name, family, budget, levels)
        for name, family in track.families.items()
    ]
    return pd.concat(tables, ignore_index=True)


def _family_verdicts(
    results: TrackResults,
    track: Track,
    name: str,
    family: Family,
    budget: int,
    levels: Sequence[float],
) -> pd.DataFrame:
    """Return the rows of `verdicts` of one family."""
    runs = results.runs_of(family.clients, budget)
    entries = [entry for entry in family.entries if (runs["entry"] == entry).any()]
    no_ops = runs.groupby("entry")["no_op"].first()
    # A run that diverged has ended early.
    complete = runs[runs["state"] == COMPLETE]
    means = complete.groupby("entry")[["bytes", "operations"]].mean().reindex(no_ops.index)
    baseline = entry_values(results, family.baseline, family.clients, budget)
    gains: dict[str, pd.DataFrame] = {}
    failed: dict[str, int] = {}
    if baseline is not None:
        for entry in entries:
            values = entry_values(results, entry, family.clients, budget)
            if values is not None and not no_ops[entry]:
                gains[entry] = track.sign * (values - baseline)
                failed[entry] = _failed_draws(results, track, family, entry, budget)
    tested = _tested(results, gains, failed, track.margin, levels)
    points = _points_tried(results, family.clients, budget)
    records = []
    for entry in entries:
        test = tested.get(entry, {"verdict": NO_OP if no_ops[entry] else MISSING_RUN, "failed": 0})
        ratios = {
            cost: means.loc[entry, cost] / means[cost].get(family.baseline, math.nan)
            for cost in ("bytes", "operations")
        }
        about: dict[str, Any] = {"family": name, "entry": entry, "other": family.baseline}
        about |= {"clients": family.clients, "no_op": no_ops[entry]}
        about |= {"points": points.get(entry, 0), "points_of_other": points.get(family.baseline, 0)}
        if no_ops[entry]:
            loss = loss_without_no_op(results, track, entry, family.clients, budget)
            about["without_no_op"] = loss
        records.append({**about, **test, **ratios})
    columns = [*COMPARISON_COLUMNS, "no_op", "without_no_op", "failed", "points", "points_of_other"]
    return pd.DataFrame(records).reindex(columns=[*columns, "bytes", "operations"])


def _points_tried(results: TrackResults, role: str, budget: int) -> dict[str, int]:
    """Return the number of points among which each entry's was chosen for clients of a role."""
    counts = {}
    for entry in results.runs_of(role, budget)["entry"].unique():
        of_draws = _trials(results, entry, role, budget).groupby("draw").size()
        counts[str(entry)] = int(of_draws.max()) if len(of_draws) else 0
    return counts


def _trials(results: TrackResults, entry: str, role: str, budget: int) -> pd.DataFrame:
    """Return the runs of tuning among which an entry's point was chosen for clients of a role.

    They have the start that was chosen for these clients before.
    """
    start = results.runs_of(role, budget, entry)["start"].iloc[0]
    tried = results.tried[(results.tried["entry"] == entry) & (results.tried["budget"] == budget)]
    same_start: pd.DataFrame = tried[tried["start"] == start]
    return same_start


def loss_without_no_op(
    results: TrackResults, track: Track, entry: str, role: str, budget: int = 1
) -> float:
    """Return what the best point of an entry other than its no-op has more than the no-op.

    It is of the tuning clients who chose: 0 or less where the no-op was chosen, and no estimate for
    others. NaN if no other point was tried, as where only the start of an entry is at its no-op.

    Args:
        results: The results of the track.
        track: The track.
        entry: Name of the entry.
        role: The clients, participants or newcomers.
        budget: The budget.
    """
    tried, no_op = _trials(results, entry, role, budget), track.no_op(entry)
    if not no_op:
        return math.nan
    is_off = np.all([tried[f"{HYPER}{key}"] == value for key, value in no_op.items()], axis=0)
    point = [column for column in tried if str(column).startswith(HYPER)]

    def best(rows: pd.DataFrame) -> float:
        of_points = rows.groupby([*point, "start"], dropna=False)[role]
        means = track.sign * of_points.agg(lambda values: values.mean(skipna=False))
        return float(means.max())

    return best(tried[~is_off]) - best(tried[is_off])


def _failed_draws(
    results: TrackResults, track: Track, family: Family, entry: str, budget: int
) -> int:
    """Return the number of draws in which an entry diverged, or its baseline alone beats the floor.

    Where the baseline is not better than the floor either, an entry that is not tells nothing.
    """
    runs = results.runs_of(family.clients, budget, entry)
    lost = runs.loc[runs["state"] == DIVERGED, "draw"]
    own, base = (
        gains_on_floor(results, track, name, family.clients, budget)
        for name in (entry, family.baseline)
    )
    return int((own.index.isin(lost) | ((own <= 0) & (base > 0))).sum())


def gains_on_floor(
    results: TrackResults, track: Track, entry: str, role: str, budget: int = 1
) -> pd.Series:
    """Return how much better an entry is than the floor by draw, mean over clients.

    Args:
        results: The results of the track.
        track: The track.
        entry: Name of the entry.
        role: The clients, participants or newcomers.
        budget: The budget.

    Returns:
        The gains; none if a run is missing.
    """
    values = entry_values(results, entry, role, budget)
    if values is None:
        return pd.Series(dtype="float64")
    gains: pd.Series = track.sign * (values.mean() - floor_values(results, role, budget).mean())
    return gains


def _tested(
    results: TrackResults,
    gains: Mapping[str, pd.DataFrame],
    failed: Mapping[str, int],
    margin: float,
    levels: Sequence[float] = (claims.LEVEL,),
) -> dict[str, dict[str, Any]]:
    """Return what is tested of comparisons, corrected together, by entry.

    Args:
        results: The results of the track, of which the clients are read.
        gains: Gains of each entry, clients by draws.
        failed: Number of draws in which each entry failed (`_failed_draws`).
        margin: Largest difference of equal entries.
        levels: As in `verdicts`.
    """
    if not gains:
        return {}
    first = next(iter(gains.values()))
    stacked = [gain.reindex(index=first.index, columns=first.columns) for gain in gains.values()]
    values = np.stack([gain.to_numpy() for gain in stacked])
    block = results.clients.groupby("client")["block"].first()[first.index]
    has_blocks = bool((block >= 0).all())  # Clients of a block are not independent.
    blocks = block.to_numpy() if has_blocks else None
    test = client_tests.family_test(values, margin=margin, blocks=blocks, levels=levels)
    p_draws = client_tests.draws_p_values(values)
    tests = {}
    for i, (entry, gain) in enumerate(gains.items()):
        mean = gain.mean(axis=1)
        record: dict[str, Any] = {
            key: float(getattr(test, key)[i])
            for key in ("difference", "low", "high", "p", "p_models", "p_equal")
        }
        # An entry without values in some draw is not tested.
        verdict = MISSING_RUN if math.isnan(record["p"]) else claims.OPEN
        if record["p_equal"] <= claims.LEVEL:
            verdict = EQUAL
        elif record["p"] <= claims.LEVEL:
            verdict = claims.AHEAD if record["difference"] > 0 else claims.BEHIND
        if failed[entry] and verdict != claims.BEHIND:
            verdict = UNSTABLE
        tests[entry] = record | {
            "n": int(mean.notna().sum()),
            "blocks": block[mean.notna()].nunique() if has_blocks else math.nan,
            "p_draws": float(p_draws[i]),
            "better": float((mean > SAME).mean()),
            "worse": float((mean < -SAME).mean()),
            "skew": _skewness(mean.groupby(block).sum() if has_blocks else mean),
            "verdict": verdict,
            "failed": failed[entry],
        }
    return tests


def _skewness(values: pd.Series) -> float:
    """Return the third central moment over the 1.5th power of the second; 0 without spread."""
    centred = values - values.mean()
    spread = (centred**2).mean()
    return float((centred**3).mean() / spread**1.5) if spread > 0 else 0.0


def at_equal_cost(results: TrackResults, track: Track, cost: str) -> pd.DataFrame:
    """Compare the entries of the families at the budget 1 with their baseline at equal cost.

    The value that a baseline would have at the cost of an entry is between those at the two
    budgets around it, in proportion to the logarithm of costs; below the lowest cost it is that of
    the lowest. An entry that costs more than the baseline at its largest budget is not compared,
    and none is where the baseline has one budget.

    Args:
        results: The results of the track.
        track: The track.
        cost: ``operations`` or ``bytes``.

    Returns:
        `COMPARISON_COLUMNS` of entries of which no run is missing.
    """
    records = []
    for name, family in track.families.items():
        role = family.clients
        curve = _curve(results, family, cost)
        gains: dict[str, pd.DataFrame] = {}
        for entry in family.entries if len(curve) > 1 else ():
            runs, values = results.runs_of(role, 1, entry), entry_values(results, entry, role)
            price = _price(runs, cost)
            if values is None or runs["no_op"].iloc[0]:
                continue
            if price <= CLOSE * curve[-1][0]:
                gains[entry] = track.sign * (values - _at_cost(curve, price))
        failed = {entry: _failed_draws(results, track, family, entry, 1) for entry in gains}
        about = {"family": name, "other": family.baseline, "clients": role}
        tests = _tested(results, gains, failed, track.margin)
        records += [{**about, "entry": entry, **test} for entry, test in tests.items()]
    return pd.DataFrame(records, columns=COMPARISON_COLUMNS)


def _curve(results: TrackResults, family: Family, cost: str) -> list[tuple[float, pd.DataFrame]]:
    """Return cost and values of a family's baseline at each budget, by rising costs."""
    budgets = results.runs.loc[results.runs["entry"] == family.baseline, "budget"].unique()
    points = []
    for budget in budgets:
        values = entry_values(results, family.baseline, family.clients, int(budget))
        price = _price(results.runs_of(family.clients, int(budget), family.baseline), cost)
        if values is not None and math.isfinite(price):
            points.append((price, values))
    return sorted(points, key=lambda point: point[0])


def _price(runs: pd.DataFrame, cost: str) -> float:
    """Return the mean cost of runs; those that diverged have ended early."""
    return float(runs.loc[runs["state"] == COMPLETE, cost].mean())


def _at_cost(curve: list[tuple[float, pd.DataFrame]], price: float) -> pd.DataFrame:
    """Return values at a cost, between those of a curve of rising costs."""
    prices = np.log([max(cost, 1.0) for cost, _ in curve])
    place = float(np.interp(math.log(max(price, 1.0)), prices, np.arange(len(curve))))
    low = int(place)
    high = min(low + 1, len(curve) - 1)
    share = place - low
    return (1 - share) * curve[low][1] + share * curve[high][1]
