from __future__ import annotations

import math

import numpy as np
import pytest

from fl.data.partition_statistics import domain_distances


def distances(*samples: np.ndarray) -> dict[tuple[int, int], float]:
    x = np.concatenate(samples)
    domains = np.repeat(np.arange(len(samples)), [len(s) for s in samples])
    found = domain_distances(x, domains, np.arange(len(x)))
    assert list(found.columns) == ["domain", "other", "mmd2"]
    return {(a, b): d for a, b, d in found.itertuples(index=False)}


def test_two_points_each_by_hand():
    """Domains at 0 and 1 on a line: squared distances 0, 0 within and four times d^2 between.

    The median of 0, 0, d^2, d^2, d^2, d^2 is d^2 whatever the projection makes of d, so that
    k = exp(-1/2) between and 1 within.
    """
    found = distances(np.zeros((2, 5)), np.ones((2, 5)))
    assert found == {(0, 1): pytest.approx(2 - 2 * math.exp(-0.5))}


def test_equal_inputs_everywhere_are_no_distance():
    assert distances(np.ones((5, 4)), np.ones((5, 4))) == {(0, 1): 0.0}
    assert distances(np.ones((1, 4)), np.ones((5, 4))) == {}
