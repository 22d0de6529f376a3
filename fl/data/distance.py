"""How far apart the inputs of domains are: a two-sample distance of every pair.

A. Gretton, K. M. Borgwardt, M. J. Rasch, B. Schoelkopf and A. Smola. A Kernel Two-Sample Test. JMLR
2012 (equation 3, and section 8 for the bandwidth).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from fl.base.rng import generator

SAMPLES = 200
"""Of a domain, at most."""
DIMENSIONS = 64
POOLED = 1000
"""Samples of all domains together that the bandwidth is taken from, at most."""


def domain_distances(x: np.ndarray, domains: np.ndarray, chosen: np.ndarray) -> pd.DataFrame:
    """The unbiased squared MMD of every two domains.

    MMD^2(a, b) = mean_{i != j} k(a_i, a_j) + mean_{i != j} k(b_i, b_j) - 2 mean_{i, j} k(a_i, b_j)
    with k(u, v) = exp(-|u - v|^2 / (2 s^2)), and s the median distance between two samples of any
    domain. Its mean is 0 where two domains do not differ, so that it may be negative; it is 2 at
    most. At most 200 samples of a domain are taken, always the same ones. Their inputs, as they are
    stored, are projected to 64 dimensions by a fixed Gaussian matrix.

    Args:
        x: Inputs ``[samples, ...]``.
        domains: The domain of each sample, whole numbers ``[samples]``.
        chosen: The samples that count. A domain with fewer than two of them is left out.

    Returns:
        A row for each two domains: ``domain``, ``other`` (the larger number) and ``mmd2``.
    """
    names, points = [], []
    features = int(np.prod(x.shape[1:]))
    matrix = generator(0, "projection").standard_normal((features, DIMENSIONS), np.float32)
    for name in np.unique(domains[chosen]):
        mine = chosen[domains[chosen] == name]
        picked = generator(0, "distance", int(name)).permutation(mine)[:SAMPLES]
        if len(picked) > 1:
            names.append(int(name))
            inputs = np.asarray(x[np.sort(picked)], np.float32).reshape(len(picked), -1)
            points.append((inputs @ (matrix / np.sqrt(features))).astype(np.float64))
    scale = _bandwidth(points)
    within = [_mean(a, a, scale) for a in points]
    rows = [
        (names[i], names[j], within[i] + within[j] - 2 * _mean(points[i], points[j], scale))
        for i in range(len(points))
        for j in range(i + 1, len(points))
    ]
    made = pd.DataFrame(rows, columns=["domain", "other", "mmd2"])
    return made.astype({"domain": "int32", "other": "int32", "mmd2": "float64"})


def _bandwidth(points: list[np.ndarray]) -> float:
    """2 s^2, from as many samples of each domain."""
    if not points:
        return 1.0
    some = np.concatenate([a[: max(2, POOLED // len(points))] for a in points])
    squares = _squares(some, some)[np.triu_indices(len(some), 1)]
    return 2 * float(np.median(squares)) or 1.0


def _mean(a: np.ndarray, b: np.ndarray, scale: float) -> float:
    """The mean of k over pairs, a sample's pair with itself left out where ``a`` is ``b``."""
    kernel = np.exp(-_squares(a, b) / scale)
    if a is b:
        return float((kernel.sum() - len(a)) / (len(a) * (len(a) - 1)))
    return float(kernel.mean())


def _squares(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Squared distances ``[len(a), len(b)]``; exactly 0 between a sample and itself."""
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T
    if a is b:
        np.fill_diagonal(squares, 0.0)
    return np.maximum(squares, 0.0)
