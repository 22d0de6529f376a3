from __future__ import annotations

import math

import numpy as np
import pytest

from fl.data.distance import domain_distances

DRAW = np.random.default_rng(0)


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


def test_neither_scale_nor_offset_nor_a_stored_type_matters():
    a, b = (DRAW.integers(0, 200, (60, 3, 8, 8)) // (i + 1) for i in range(2))
    plain = distances(a.astype(float), b.astype(float))[0, 1]
    assert distances(a.astype(np.uint8), b.astype(np.uint8))[0, 1] == pytest.approx(plain, rel=1e-4)
    moved = distances(a / 255 - 3.0, b / 255 - 3.0)[0, 1]
    assert moved == pytest.approx(plain, rel=1e-3)


def test_only_what_is_chosen_counts_and_every_pair_is_there():
    x, domains = DRAW.normal(size=(4000, 6)), np.arange(4000) % 5
    chosen = np.flatnonzero((domains != 3) | (np.arange(4000) == 3))
    found = domain_distances(x, domains, chosen)
    assert found[["domain", "other"]].to_numpy().tolist() == [
        [0, 1], [0, 2], [0, 4], [1, 2], [1, 4], [2, 4],
    ]  # fmt: skip
    assert found.equals(domain_distances(x, domains, chosen))
    spoilt = x.copy()
    spoilt[domains == 3] += 100
    assert domain_distances(spoilt, domains, chosen).equals(found)


def test_equal_inputs_everywhere_are_no_distance():
    assert distances(np.ones((5, 4)), np.ones((5, 4))) == {(0, 1): 0.0}
    assert distances(np.ones((1, 4)), np.ones((5, 4))) == {}
