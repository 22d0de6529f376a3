"""Quadratic programs over the probability simplex: min_a a' P a with a >= 0 and sum a = 1."""

from __future__ import annotations

import torch
from torch import Tensor

from fl.blocks.mixing import project_to_simplex

STEPS = 2000
"""Steps of the projected gradient method; more than the tests need for six digits."""


def minimise_on_simplex(matrix: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return the minimiser a of a' P a on the simplex for each matrix, [..., K].

    It is the accelerated projected gradient method (Beck, Teboulle. A Fast Iterative
    Shrinkage-Thresholding Algorithm. SIAM Journal on Imaging Sciences 2009) with restarts whenever
    a step goes uphill, from equal weights.

    Args:
        matrix: Positive semidefinite matrices P, [..., K, K].
        allowed: Which weights may be positive, bool [K]; None, or none of them: all.
    """
    if allowed is None or not allowed.any():
        allowed = torch.ones_like(matrix[..., 0, :], dtype=torch.bool)
    count = matrix.shape[-1]
    # The row sums bound the largest eigenvalue.
    bound = 2 * matrix.abs().sum(-1).amax(-1)[..., None].clamp(min=torch.finfo(matrix.dtype).tiny)
    a = matrix.new_full(matrix.shape[:-1], 1 / count)
    ahead, momentum = a, matrix.new_ones((*a.shape[:-1], 1))
    for _ in range(STEPS):
        slope = 2 * (matrix @ ahead[..., None])[..., 0]
        moved = project_to_simplex(torch.where(allowed, ahead - slope / bound, -float("inf")))
        is_uphill = (slope * (moved - a)).sum(-1, keepdim=True) > 0
        momentum = torch.where(is_uphill, 1, momentum)
        grown = (1 + (1 + 4 * momentum.square()).sqrt()) / 2
        ahead = moved + (momentum - 1) / grown * (moved - a)
        a, momentum = moved, grown
    return a
