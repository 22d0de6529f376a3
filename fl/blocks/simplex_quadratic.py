"""Quadratic programs over the probability simplex: min_a a' P a with a >= 0 and sum a = 1."""

from __future__ import annotations

import torch
from torch import Tensor

TRIES = 3
"""Exchanges of all wrong variables at once that may pass without fewer of them."""
RIDGE = 1e-12
"""Number that is added to the diagonal of a matrix whose largest entry there is 1.

Matrices in single precision get more: as much as rounding can lower their smallest eigenvalue.
"""
TOLERANCE = 1e-9
"""Slopes, of size 1 where all is 0, that still count as 0."""
_LIMIT = 10
"""Exchanges for each variable, after which a matrix without numbers is given up."""
_NONE_YET = 2**31


def minimise_on_simplex(matrix: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return the minimiser a of a' P a on the simplex for each matrix, [..., K].

    The minimiser is x / sum(x), where x >= 0 minimises x' P x / 2 - sum(x): both have the same
    optimality conditions up to a factor. The latter is solved exactly by block principal pivoting
    (Kim, Park. Fast Nonnegative Matrix Factorization: An Active-Set-Like Method and Comparisons.
    SIAM Journal on Scientific Computing 2011): variables are free or 0; those with a wrong sign
    change sides, all at once, or the last of them alone when that does not help. The computation is
    in double precision: in single precision, signs are lost where a matrix is nearly singular.

    Args:
        matrix: Positive semidefinite matrices P, [..., K, K], each up to rounding.
        allowed: Which weights may be positive, bool [K]; None, or none of them: all.
    """
    if allowed is None or not allowed.any():
        allowed = torch.ones_like(matrix[..., 0, :], dtype=torch.bool)
    dtype, matrix = matrix.dtype, matrix.double()
    ridge = max(RIDGE, matrix.shape[-1] * torch.finfo(dtype).eps)
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    largest = matrix.diagonal(dim1=-2, dim2=-1).amax(-1)[..., None, None]
    matrix = matrix / torch.where(largest > 0, largest, 1) + ridge * identity
    number = torch.arange(matrix.shape[-1], device=matrix.device)
    is_free = allowed.expand(matrix.shape[:-1]).clone()
    fewest = torch.full_like(is_free[..., :1], _NONE_YET, dtype=torch.int64)
    tries = torch.full_like(fewest, TRIES)
    for _ in range(_LIMIT * matrix.shape[-1]):
        x = _solution(matrix, identity, is_free)
        slope = (matrix @ x[..., None])[..., 0] - 1
        is_wrong = torch.where(is_free, x < 0, allowed & (slope < -TOLERANCE))
        count = is_wrong.sum(-1, keepdim=True)
        if not count.any():
            break
        is_better = count < fewest
        tries = torch.where(is_better, TRIES, tries - 1)
        fewest = torch.where(is_better, count, fewest)
        last = torch.where(is_wrong, number, -1).amax(-1, keepdim=True)
        is_free = is_free ^ torch.where(tries >= 0, is_wrong, is_wrong & (number == last))
    x = x.clamp(min=0)
    return (x / x.sum(-1, keepdim=True)).to(dtype)


def _solution(matrix: Tensor, identity: Tensor, is_free: Tensor) -> Tensor:
    """Return the x with (P x)_i = 1 for the free variables i, and 0 for the others."""
    is_pair = is_free[..., :, None] & is_free[..., None, :]
    x: Tensor = torch.linalg.solve_ex(
        torch.where(is_pair, matrix, identity), is_free.to(matrix.dtype)[..., None]
    ).result[..., 0]
    return torch.where(is_free, x, 0)
