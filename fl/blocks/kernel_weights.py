"""Weights of kernels that separate two samples best: a small quadratic program, in batches.

S. Ayromlou, D. B. Emerson. Adaptive Latent-Space Constraints in Personalized FL. 2025 (equation 1),
after A. Gretton et al. Optimal kernel choice for large-scale two-sample tests. NIPS 2012.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl.base.errors import optional_package

BLOCKS, PIVOTS = 3, 200
"""Steps that exchange many kernels at once, and the limit of single exchanges, see `solve`."""

SMALL = 1e-14
"""The largest number that counts as zero in a scaled problem."""

SINGULAR = 1e-12
"""The smallest ridge, as a share of the mean variance; it matters only if no ridge is set."""


def optimal_kernel_weights(mmd2: Tensor, covariance: Tensor, ridge: float) -> Tensor:
    """Kernel weights beta, ``[..., r]``: non-negative, with sum 1 (section 3.3).

    They are argmin 1/2 b'(2 Q + ridge I) b with m'b = 1 and b >= 0, then b divided by its sum. If m
    has no positive entry, the kernel with the largest m_j / (2 Q + ridge I)_jj gets all the weight;
    of equal ones the first, so that equal batches get the first kernel. If m or Q is not finite,
    the weights are 1/r each; a caller that prefers its previous weights has to check m.

    The program is homogeneous in b: the weights are those of argmin 1/2 c'A c - m'c, c >= 0, which
    `solve` finds exactly. No gradient flows through them. They are computed in double precision and
    returned in the precision of ``mmd2``.

    Args:
        mmd2: m, ``[..., r]``.
        covariance: Q, ``[..., r, r]``.
        ridge: The ridge epsilon.
    """
    m, q = mmd2.detach().double(), covariance.detach().double()
    sound = m.isfinite().all(dim=-1) & q.isfinite().all(dim=-1).all(dim=-1)
    m, q = m.where(sound[..., None], 0), q.where(sound[..., None, None], 0)
    r = m.shape[-1]
    a = 2 * q + _ridge(q, ridge)[..., None, None] * torch.eye(r, dtype=q.dtype, device=q.device)
    scale = a.diagonal(dim1=-2, dim2=-1).rsqrt()
    target = m * scale
    positive = target.amax(dim=-1, keepdim=True)
    best = _one_hot((target * scale).argmax(dim=-1, keepdim=True), r)
    target = target / positive.where(positive > 0, 1)
    weights = scale * solve(scale[..., None] * a * scale[..., None, :], target)
    total = weights.sum(dim=-1, keepdim=True)
    weights = torch.where((positive > 0) & (total > 0), weights / total, best.to(m.dtype))
    return weights.where(sound[..., None], 1 / r).to(mmd2.dtype)


def optimal_kernel_weights_cvxpy(mmd2: Tensor, covariance: Tensor, ridge: float) -> Tensor:
    """Compute `optimal_kernel_weights` by a quadratic programming solver, one by one.

    It needs cvxpy, and m and Q have to be finite. The weights agree to 1e-6, mostly to 1e-9.
    """
    r = mmd2.shape[-1]
    rows = []
    for m, q in zip(mmd2.reshape(-1, r), covariance.reshape(-1, r, r), strict=True):
        m, q = (t.detach().double().cpu().numpy() for t in (m, q))
        a = 2 * q + ridge * np.eye(r)
        rows.append(
            _solve_by_cvxpy(a, m) if m.max() > 0 else np.eye(r)[(m / a.diagonal()).argmax()]
        )
    return torch.as_tensor(np.stack(rows)).to(mmd2).reshape(mmd2.shape)


def _solve_by_cvxpy(a: np.ndarray, m: np.ndarray) -> np.ndarray:
    """Return the weights for one m with a positive entry, [r].

    The solver gets the homogeneous program, scaled to unit diagonal, for which it is most precise.
    """
    with optional_package("solver: cvxpy"):
        import cvxpy

    unit, c = np.sqrt(a.diagonal()), cvxpy.Variable(len(m))
    quadratic = cvxpy.quad_form(c, a / np.outer(unit, unit), assume_PSD=True) / 2
    target = m / unit
    problem = cvxpy.Problem(cvxpy.Minimize(quadratic - target / target.max() @ c), [c >= 0])
    limits = ("tol_gap_abs", "tol_gap_rel", "tol_feas")
    try:
        problem.solve(solver=cvxpy.CLARABEL, **dict.fromkeys(limits, 1e-12))
    except cvxpy.SolverError:
        problem.solve(solver=cvxpy.CLARABEL, **dict.fromkeys(limits, 1e-10))
    weights = np.maximum(np.asarray(c.value), 0) / unit
    return weights / weights.sum()


def _ridge(q: Tensor, ridge: float) -> Tensor:
    smallest_ridge = SINGULAR * 2 * q.diagonal(dim1=-2, dim2=-1).mean(dim=-1)
    return smallest_ridge.clamp(min=max(ridge, 1e-200))


def _one_hot(index: Tensor, r: int) -> Tensor:
    """Return True at ``index``, [..., 1], and False elsewhere: [..., r]."""
    return torch.arange(r, device=index.device) == index


@torch.library.custom_op("fedloom::nonnegative_quadratic", mutates_args=())
def solve(a: Tensor, m: Tensor) -> Tensor:
    """Solve argmin 1/2 c'A c - m'c over c >= 0, ``[..., r]``; A has unit diagonal, max m = 1.

    The result is exact, by active sets: it is a set S with c = A_SS^-1 m_S >= 0 on it and A c - m
    >= 0 off it. The search starts from the best single kernel. `BLOCKS` times, all negative entries
    are exchanged, which is mostly enough (Judice and Pires 1994). If it is not, entries are
    exchanged one at a time along A c - m + t d, as t goes from a value for which the set is right
    down to 0 (the parametric principal pivoting of Cottle, Pang and Stone 1992, section 4.5); only
    ties can make that cycle.

    For `torch.func.vmap` and the compiler this is one operation, because the number of steps
    depends on the data; `PIVOTS` bounds it.
    """
    r = m.shape[-1]
    a, target = a.reshape(-1, r, r), m.reshape(-1, r, 1)
    eye = torch.eye(r, dtype=a.dtype, device=a.device)

    def basic(chosen: Tensor, targets: Tensor) -> Tensor:
        """Return c on S and A c - m off S, for each column of ``targets``."""
        inside = chosen.unsqueeze(-1)
        factor, _ = torch.linalg.cholesky_ex(torch.where(inside & inside.mT, a, eye))
        c = torch.cholesky_solve(targets * inside, factor)
        return torch.where(inside, c, torch.baddbmm(targets, a, c, beta=-1))

    chosen = _one_hot(target.argmax(dim=-2), r)
    for _ in range(BLOCKS):
        chosen = chosen ^ (basic(chosen, target).squeeze(-1) < -SMALL)
    # With this d every entry grows by t itself.
    inside = chosen.unsqueeze(-1).to(a.dtype)
    targets = torch.cat([target, a @ inside - (1 - inside)], dim=-1)
    for _ in range(PIVOTS):
        solution, slope = basic(chosen, targets).unbind(-1)
        crossing, index = torch.where(slope > 0, -solution / slope, -1.0).max(dim=-1, keepdim=True)
        is_open = crossing > SMALL
        if not is_open.any():
            break
        chosen = chosen ^ (_one_hot(index, r) & is_open)
    return solution.where(chosen, 0).clamp(min=0).reshape(m.shape)


@solve.register_fake
def _(a: Tensor, m: Tensor) -> Tensor:
    return torch.empty_like(m)


@solve.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], a: Tensor, m: Tensor) -> tuple[Tensor, int]:
    a, m = (
        t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip((a, m), in_dims, strict=True)
    )
    return solve(a, m), 0
