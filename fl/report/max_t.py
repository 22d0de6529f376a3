"""Step-down maxT over sign flips of draws: p-values of many comparisons, corrected together.

Westfall, Young. Resampling-Based Multiple Testing. Wiley 1993; Fisher. The Design of Experiments.
Oliver and Boyd 1935.

Where two methods are alike, the sign of their difference on a draw is that of a fair coin. A flip
is one choice of signs, one for each draw, and the same for all comparisons, which keeps what they
have in common. The statistic is Student's t of the differences: a mean alone would let the
comparisons with the largest spread decide for all. It counts by its tail in the t distribution of
its degrees of freedom, since t alone would let the comparisons with the fewest draws do so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from scipy.special import stdtr

EXACT = 13
"""Up to so many draws all flips are counted."""
RANDOM_FLIPS, SEED = 2**16 - 1, 0
"""Number and seed of the flips that are drawn for more draws."""
BLOCK = 2**13
"""Flips that are held in memory at once."""


def rule(units: int) -> str:
    """Return how the flips of so many draws are found, for texts."""
    if units <= EXACT:
        return "exact sign-flip test"
    return f"sign-flip test with {RANDOM_FLIPS:,} random flips, seed {SEED}"


def smallest(units: int) -> float:
    """Return the smallest two-sided p-value that so many draws can give."""
    return 2.0 ** (1 - units) if units <= EXACT else 1 / (RANDOM_FLIPS + 1)


def p_values(differences: np.ndarray, one_sided: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return the p-value of each comparison that its mean is 0, alone and corrected for all.

    The corrected one of the k-th rarest t is the share of flips in which the rarest t of it and all
    less rare ones is at least as rare, and no less than that of a rarer t. Flips count whose t is
    lower by rounding.

    Args:
        differences: Of two methods on a draw, comparisons x draws; NaN where there is none.
        one_sided: Whether only a mean above 0 is looked for, in place of any other than 0.

    Returns:
        Two arrays of p-values; NaN of fewer than two differences.
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
    """Yield blocks of flips x draws: all, or random ones after that which flips nothing."""
    if units <= EXACT:
        yield np.array([*itertools.product((1.0, -1.0), repeat=units)])
        return
    yield np.ones((1, units))
    generator = np.random.default_rng(SEED)
    for start in range(0, RANDOM_FLIPS, BLOCK):
        size = (min(BLOCK, RANDOM_FLIPS - start), units)
        yield generator.integers(0, 2, size) * 2.0 - 1
