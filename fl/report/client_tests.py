"""Tests of differences between methods over clients and over draws.

A *client* is the unit of a claim: what is tested is the mean over clients of their mean difference.
A *draw* trains everything again: its own split of each client's samples, its own clients that come
later, its own first network. What a draw's shared model gives to all its clients alike is in the
mean of every client, so that a test over clients alone takes the luck of eight models for a
property of the methods. `family_test` therefore lets both vary.

Values are arrays [comparisons, clients, draws] of differences from a baseline, of a metric of which
more is better; NaN where a client was not scored in a draw. Nothing here knows of files.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fl.report import claims
from fl.report.claims import FLIP_SEED, RANDOM_FLIPS

FLIP_BLOCK = 2**12
"""Number of flips that are held in memory at once."""
MOST_FLIPS = 2**21
"""Number of flips after which a p-value that is still too near to the level decides as it is."""
ERRORS = 4.0
"""Number of standard errors that a p-value is to be away from the level."""
CONFIDENCE = 1 - claims.LEVEL
"""Share of repetitions in which an interval is to hold the mean."""
ROUNDING = 1e-9
"""A flip whose statistic is lower by less counts as equal."""


class FamilyTest(NamedTuple):
    """Result of `family_test`, an array [comparisons] each; NaN where nothing can be tested.

    Attributes:
        difference: Mean over clients of their means over draws.
        low: Lower end of the 95 % interval of the difference, which is not corrected.
        high: Its upper end.
        p: p-value that the difference is 0 for clients like these and models trained again,
            corrected for the family.
        p_models: The same for clients like these and the models of these draws.
        p_equal: p-value that the difference is not within the margin, corrected for the family.
    """

    difference: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray
    p_models: np.ndarray
    p_equal: np.ndarray


def family_test(
    values: np.ndarray,
    *,
    margin: float = math.nan,
    blocks: np.ndarray | None = None,
    flips: int | None = None,
    levels: Sequence[float] = (claims.LEVEL,),
) -> FamilyTest:
    """Test all comparisons of a family, with one correction for all of them.

    With d[j, k, s] the difference of comparison j for client k in draw s, m[j, k] the mean over the
    draws in which the client was scored, and T[j] the mean of m[j, k] over the n clients, a flip is

        T*[j] = sum_k e[k] m[j, k] / n + sum_s z[s] v[j, s] / S,

    where signs e and multipliers z are the same for all comparisons, which keeps what these have in
    common. v[j, s] is the deviation of draw s, the mean over its clients less the mean of all S
    such means, times sqrt(S / (S - 1)). Signs are those of fair coins, as under Fisher (The Design
    of Experiments, 1935); multipliers are normal over the root of a chi-squared variable that is
    divided by its S - 1 degrees of freedom, since S draws tell little of their own spread. The
    statistic is |T| over the root of sum_k m^2 / n^2 + sum_s v^2 / S^2, and the correction the
    step-down maxT (Westfall and Young, Resampling-Based Multiple Testing, 1993). `FamilyTest.p`
    counts these flips. `FamilyTest.p_models` has no term of draws in flips and statistic.

    As the mean of a draw holds the noise of its clients too, `FamilyTest.p` is rather too large: at
    most 4 % of simulated families without effects had a claim at 5 % (``tools/false_claims.py``),
    and fewer where each draw scores other clients, as it does of those who come later.

    Two methods are equal if one-sided tests of the same kind say that the difference is above
    -margin and below it (Schuirmann, J. Pharmacokinet. Biopharm. 15, 1987); both tests of all
    comparisons are one family, and the larger p-value counts.

    The interval is T and the 95 % quantile of |T* - T| to both sides, in flips of the clients'
    deviations from T and of the draws' (the wild bootstrap: Wu, Ann. Statist. 14, 1986).

    Args:
        values: Differences from the baseline, [comparisons, clients, draws]; NaN if missing. A
            comparison without a value in a draw that others have is not tested.
        margin: Difference within which methods are equal, in units of ``values``; NaN: none is.
        blocks: Number of each client's block, from 0 on, [clients]: clients of a block flip
            together. None: clients are independent.
        flips: Number of flips. None: `fl.report.claims.RANDOM_FLIPS`, and more, up to `MOST_FLIPS`,
            while a p-value that decides is within `ERRORS` standard errors of a level, so that
            no verdict hangs on the seed.
        levels: The levels.
    """
    is_there = np.isfinite(values)
    has_clients, has_draws = is_there.any(axis=(0, 2)), is_there.any(axis=(0, 1))
    values, is_there = values[:, has_clients][:, :, has_draws], is_there[:, has_clients]
    results = np.full((len(FamilyTest._fields), len(values)), math.nan)
    is_tested = is_there[:, :, has_draws].any(axis=1).all(axis=1)
    is_tested &= (is_there.any(axis=2).sum(axis=1) > 1) & (has_draws.sum() > 1)
    if is_tested.any():
        numbers = np.arange(len(has_clients)) if blocks is None else np.asarray(blocks)
        _, block_of = np.unique(numbers[has_clients], return_inverse=True)
        results[:, is_tested] = _test(values[is_tested], margin, block_of, flips, levels)
    return FamilyTest(*results)


def _test(
    values: np.ndarray,
    margin: float,
    block_of: np.ndarray,
    flips: int | None,
    levels: Sequence[float],
) -> FamilyTest:
    """Return `family_test` of comparisons that have values in all draws.

    Args:
        values: Differences, [comparisons, clients, draws]; each client has some, and each draw.
        margin: As in `family_test`.
        block_of: Number of each client's block, [clients].
        flips: As in `family_test`.
        levels: As in `family_test`.
    """
    count, draws = len(values), values.shape[2]
    is_scored = np.isfinite(values).any(axis=2)
    share = is_scored / is_scored.sum(axis=1, keepdims=True)  # Of each client in the mean.
    per_client, per_draw = np.where(is_scored, _mean(values, 2), 0.0), _mean(values, 1)
    difference = (share * per_client).sum(axis=1)
    deviation = per_draw - per_draw.mean(axis=1, keepdims=True)
    by_draw = deviation * math.sqrt(draws / (draws - 1)) / draws

    def in_blocks(weights: np.ndarray) -> np.ndarray:
        return np.stack([np.bincount(block_of, row) for row in weights])

    # Of each block, what it adds to the mean, and its share in it.
    sums, shares = in_blocks(share * per_client), in_blocks(share)
    units = (shares > 0).sum(axis=1)
    # One block has no spread, so that nothing is known of its mean.
    widening = np.sqrt(units / np.where(units > 1, units - 1, math.nan))
    centred = widening[:, None] * (sums - difference[:, None] * shares)
    over_clients_and_draws = _StepDown(np.abs(difference), _root(sums, by_draw))
    over_clients = _StepDown(np.abs(difference), _root(sums))
    # The two one-sided tests: that the mean is above -margin, and that it is below it.
    has_margin = math.isfinite(margin)
    above, below = sums + margin * shares, margin * shares - sums
    sides = np.concatenate([margin + difference, margin - difference])
    spreads = np.concatenate([_root(above, by_draw), _root(below, by_draw)])
    equal = _StepDown(sides, spreads) if has_margin else None
    decisive = [over_clients_and_draws, *([equal] if equal else [])]
    distances: list[np.ndarray] = []
    for signs, multipliers in _flips(sums.shape[1], draws, flips or MOST_FLIPS):
        by_clients, by_draws = signs @ sums.T, multipliers @ by_draw.T
        over_clients.add(np.abs(by_clients))
        over_clients_and_draws.add(np.abs(by_clients + by_draws))
        if equal is not None:
            shift = margin * (signs @ shares.T)
            gaps = (by_clients + shift + by_draws, shift - by_clients - by_draws)
            equal.add(np.concatenate(gaps, axis=1))
        if len(distances) * FLIP_BLOCK < RANDOM_FLIPS:  # More are not needed for an interval.
            distances.append(np.abs(signs @ centred.T + by_draws))
        is_enough = flips is None and over_clients.flips > RANDOM_FLIPS
        if is_enough and not any(test.is_near(level) for test in decisive for level in levels):
            break
    half_width = np.quantile(np.concatenate(distances), CONFIDENCE, axis=0)
    p_equal = np.full(count, math.nan)
    if equal is not None:
        p_equal = equal.p_values().reshape(2, -1).max(axis=0)
    return FamilyTest(
        difference,
        difference - half_width,
        difference + half_width,
        over_clients_and_draws.p_values(),
        over_clients.p_values(),
        p_equal,
    )


def _root(*terms: np.ndarray) -> np.ndarray:
    """Return the root of the sum of squares of all terms, [comparisons, terms] each."""
    total: np.ndarray = np.sqrt(sum((term**2).sum(axis=1) for term in terms))
    return total


def _flips(blocks: int, draws: int, flips: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield signs [flips, blocks] and multipliers of draws [flips, draws], some flips at a time."""
    generator = np.random.default_rng(FLIP_SEED)
    for start in range(0, flips, FLIP_BLOCK):
        count = min(FLIP_BLOCK, flips - start)
        signs = generator.integers(0, 2, (count, blocks), dtype=np.int8) * 2.0 - 1
        normal = generator.normal(size=(count, draws))
        spread = np.sqrt(generator.chisquare(draws - 1, size=(count, 1)) / (draws - 1))
        yield signs, normal / spread


class _StepDown:
    """Step-down maxT: flips are counted whose largest statistic is at least an observed one."""

    def __init__(self, sums: np.ndarray, spreads: np.ndarray) -> None:
        """Take the observed sum of each comparison and its spread, which flips leave as it is."""
        # A comparison without any difference has no spread; no flip of it is rare.
        self.scale = np.divide(1.0, spreads, out=np.zeros_like(spreads), where=spreads > 0)
        self.observed = sums * self.scale
        self.order = np.argsort(-self.observed, kind="stable")
        self.counts, self.flips = np.ones(len(sums)), 1  # The flip without changes.

    def add(self, sums: np.ndarray) -> None:
        """Count flips by their sums, [flips, comparisons]."""
        ordered = (sums * self.scale)[:, self.order[::-1]]
        largest = np.maximum.accumulate(ordered, axis=1)[:, ::-1]
        self.counts[self.order] += (largest >= self.observed[self.order] - ROUNDING).sum(axis=0)
        self.flips += len(sums)

    def is_near(self, level: float) -> bool:
        """Whether a corrected p-value may be on either side of a level."""
        spread = math.sqrt(level * (1 - level) / self.flips)
        return bool((np.abs(self.p_values() - level) <= ERRORS * spread).any())

    def p_values(self) -> np.ndarray:
        """Return corrected p-values; none is below that of a rarer comparison."""
        corrected = np.empty(len(self.counts))
        corrected[self.order] = np.maximum.accumulate(self.counts[self.order] / self.flips)
        return corrected


def draws_p_values(values: np.ndarray) -> np.ndarray:
    """Return corrected p-values of a test over draws alone, [comparisons].

    It says what would be found if the same clients were split and trained again, and nothing of
    other clients: the value of a draw is the mean over its clients (`fl.report.claims.p_values`).

    Args:
        values: Differences from the baseline, [comparisons, clients, draws]; NaN if missing.
    """
    return claims.p_values(_mean(values, 1))[1]


def oracle(values: np.ndarray, group: np.ndarray, reference: int | None = None) -> np.ndarray:
    """Return what a choice of one's own would gain, without the luck of the choice, [clients].

    Each group of clients chooses its best point on one half of the values, and each of its clients
    is scored on the other half, both ways. The best of many points on the values that are scored
    would gain by chance even where all points are alike; this gain is 0 on average there, and below
    0 where a choice by a group's few values is worse than one for all.

    Args:
        values: A metric of which more is better, [points, clients, halves], by two halves of each
            client's samples; or, with NaN in the other half, by two halves of the clients.
        group: Number of the group that chooses for each client, [clients]: of its own if each
            client chooses for itself.
        reference: The point with which the choice is compared. None: the best point for all
            clients, which is chosen on the same half as the groups' points.

    Returns:
        Differences from the reference, mean over the halves in which a client is scored; NaN if it
        is in none.
    """
    gains = np.full(values.shape[1:], math.nan)
    for chooses, scores in ((0, 1), (1, 0)):
        means = {
            number: _mean(values[:, group == number, chooses], 1) for number in np.unique(group)
        }
        best_of_all = int(np.nanargmax(_mean(values[:, :, chooses], 1)))
        base = best_of_all if reference is None else reference
        for number, mean in means.items():
            if np.isfinite(mean).any():
                point, is_member = int(np.nanargmax(mean)), group == number
                members = values[:, is_member, scores]
                gains[is_member, scores] = members[point] - members[base]
    return _mean(gains, 1)


def _mean(values: np.ndarray, axis: int) -> np.ndarray:
    """Return the mean of what is there along an axis; NaN where nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        mean: np.ndarray = np.nanmean(values, axis=axis)
    return mean
