"""The row sums of a deep kernel between two samples, and their gradient, written out.

Training a kernel needs nothing else of it (see `fl.parts.deep_kernel`). Written out, a gradient
takes one product of matrices and a few passes over the pairs; automatic differentiation would keep
every step on the way and go through it again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fl.parts.distances import three_distances


def two_kernels(
    deep: Tensor, plain: Tensor, phi: Tensor, q: Tensor, product: bool
) -> tuple[Tensor, Tensor]:
    """A - 1 and B - 1, where B = exp(-plain / q), and A = exp(-deep / phi), times B for a product.

    Less one, kernels are small where rows are near, so that differences lose no digits.
    """
    further = plain / -q
    nearer = torch.addcmul(further, deep, -1 / phi) if product else deep / -phi
    return torch.expm1(nearer), torch.expm1(further)


def row_sums(
    x: Tensor, y: Tensor, plain: Tensor, phi: Tensor, q: Tensor, epsilon: Tensor, product: bool
) -> tuple[Tensor, Tensor]:
    """sum_t k(x_s, x_t) - k(x_s, y_t) and sum_t k(y_s, y_t) - k(x_t, y_s), each ``[..., n]``.

    k is (1 - epsilon) A + epsilon B, see `two_kernels`. The sums can be differentiated once, by all
    inputs.

    Args:
        x, y: Features, ``[..., n, d]``.
        plain: `three_distances` of the samples themselves, ``[..., 3, n, n]``.
        phi, q, epsilon: ``[...]``, or one of each.
    """
    scales = (scale.expand(x.shape[:-2]) for scale in (phi, q, epsilon))
    own, other = _RowSums.apply(x, y, plain, *scales, product)[:2]
    return own, other


class _RowSums(torch.autograd.Function):
    """`row_sums` with its gradient.

    With u and v the gradients of the two sums, the gradient by k(x_s, x_t) = k(x_t, x_s) is u_s +
    u_t, by k(y_s, y_t) it is v_s + v_t, and by k(x_s, y_t) it is -(u_s + v_t).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, y: Tensor, plain: Tensor, phi: Tensor, q: Tensor, epsilon: Tensor, product: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Both sums, A - 1 and B - 1."""
        deep = three_distances(x, y)
        first, second = two_kernels(deep, plain, _over(phi), _over(q), product)
        within_x, within_y, between = torch.lerp(first, second, _over(epsilon)).unbind(-3)
        own = (within_x - between).sum(dim=-1)
        other = (within_y - between.mT).sum(dim=-1)
        return own, other, first, second

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *_, first, second = output
        *tensors, ctx.product = inputs
        ctx.mark_non_differentiable(first, second)
        ctx.set_materialize_grads(False)  # That of the two kernels would be zeros for every pair.
        ctx.save_for_backward(*tensors, first, second)

    @staticmethod
    def backward(
        ctx: Any, u: Tensor | None, v: Tensor | None, *_: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """By every input; the pairs (s, t) and (t, s) within a sample count together."""
        x, y, plain, phi, q, epsilon, first, second = ctx.saved_tensors
        u, v = (x.new_zeros(x.shape[:-1]) if grad is None else grad for grad in (u, v))
        weight = torch.stack([u, v, -u], -2)[..., None] + torch.stack([u, v, -v], -2)[..., None, :]
        a, b = torch.addcmul(weight, first, weight), torch.addcmul(weight, second, weight)
        centre = x.mean(-2, keepdim=True)
        x, y = x - centre, y - centre
        pull_x, pull_y = _pull(a, x, y)
        own = (1 - epsilon) / phi
        by_phi = own / phi * ((x * pull_x).sum((-2, -1)) + (y * pull_y).sum((-2, -1)))
        by_epsilon = _whole(b.sum((-2, -1))) - _whole(a.sum((-2, -1)))
        parts = [((1 - epsilon) * ctx.product, a), (epsilon, b)]
        by_q = sum(share * _whole(_dot(part, plain)) for share, part in parts) / q.square()
        by_plain = None
        if ctx.needs_input_grad[2]:
            once = torch.tensor([0.5, 0.5, 1.0], dtype=x.dtype, device=x.device)[:, None, None]
            further = sum(_over(share) * part for share, part in parts)
            by_plain = -once * further / _over(q)
        by_x, by_y = (-2 * own[..., None, None] * pull for pull in (pull_x, pull_y))
        return by_x, by_y, by_plain, by_phi, by_q, by_epsilon, None


def _over(scalar: Tensor) -> Tensor:
    """A number for each leading dimension, shaped to broadcast against ``[..., 3, n, n]``."""
    return scalar[..., None, None, None]


def _pull(a: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """sum_t a_st (z_s - z_t) over all rows z_t of both samples, for the rows of x and of y."""
    ahead = a @ torch.stack([x, y, y], -3)
    back = a[..., 2, :, :].mT @ x
    rows, columns = a.sum(-1), a[..., 2, :, :].sum(-2)
    of_x = (rows[..., 0, :] + rows[..., 2, :])[..., None] * x
    of_y = (rows[..., 1, :] + columns)[..., None] * y
    return of_x - ahead[..., 0, :, :] - ahead[..., 2, :, :], of_y - ahead[..., 1, :, :] - back


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """sum_st a_st b_st of each block, ``[..., 3]``."""
    return torch.einsum("...st,...st->...", a, b)


def _whole(sums: Tensor) -> Tensor:
    """The sum over all pairs, from sums over the pairs of each block; pairs within a sample count
    once.
    """
    within_x, within_y, between = sums.unbind(-1)
    return (within_x + within_y) / 2 + between
