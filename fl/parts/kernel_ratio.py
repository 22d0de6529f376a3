"""MMD^2 / sigma of a deep kernel and its gradient, written out.

Training a kernel needs nothing else of it (see `fl.parts.deep_kernel`). Written out, value and
gradient take a few passes over the pairs, client after client, while a cache holds them; automatic
differentiation would keep every step on the way, for all clients, and go through it again.

The last layer of the featurizer is linear, so distances behind it are those before it in the metric
W'W, which has fewer dimensions than there are features.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fl.parts.distances import three_distances

RIDGE = 1e-8
"""What is added to the variance (Liu et al. 2020, equation 5)."""

AT_ONCE = 2**20
"""Entries of kernels that are worked on at once, so that a cache holds them."""


class Inputs(NamedTuple):
    """Two samples and a kernel between them; all tensors have the same leading dimensions.

    x, y: what the last layer of the featurizer takes, ``[..., n, r]``. weight: W of that layer,
    ``[..., features, r]``. phi, q, epsilon: bandwidths and eps, ``[...]``. plain: `three_distances`
    of the samples themselves, ``[..., 3, n, n]``. apart: the squared distances of their rows, the
    second sample's moved by ``shift`` places, ``[..., n]``. product: whether q multiplies both
    terms.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    phi: Tensor
    q: Tensor
    epsilon: Tensor
    plain: Tensor
    apart: Tensor
    shift: int
    product: bool


SLOPES = 6
"""By how many of the first inputs there is a gradient: the samples themselves are constants."""


def two_kernels(
    deep: Tensor, plain: Tensor, phi: Tensor, q: Tensor, product: bool
) -> tuple[Tensor, Tensor]:
    """A - 1 and B - 1, where B = exp(-plain / q), and A = exp(-deep / phi), times B for a product.

    Less one, kernels are small where rows are near, so that differences lose no digits.
    """
    further = plain / -q
    nearer = torch.addcmul(further, deep, -1 / phi) if product else deep / -phi
    return nearer.expm1_(), further.expm1_()


def ratio(inputs: Inputs) -> Tensor:
    """MMD^2 / sigma, ``[...]``, see `fl.parts.deep_kernel.DeepKernel.objective`.

    It can be differentiated once.
    """
    value: Tensor = _Ratio.apply(*inputs)[0]  # type: ignore[no-untyped-call]
    return value


def moved_apart(x: Tensor, y: Tensor, shift: int) -> Tensor:
    """Rows of x less those of y, which are moved by ``shift`` places, ``[..., n, d]``."""
    return x - y.roll(shift, -2)


class _Ratio(torch.autograd.Function):
    """`ratio`, whose gradient is computed with it, as each step wants it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        """The value and its gradient by each of the first inputs."""
        inputs = Inputs(*arguments)
        *tensors, shift, product = inputs
        lead, n = inputs.x.shape[:-2], inputs.x.shape[-2]
        size = max(1, AT_ONCE // (3 * n * n))
        if lead.numel() <= size:
            return _evaluated(inputs)
        groups = zip(*(t.flatten(0, len(lead) - 1).split(size) for t in tensors), strict=True)
        parts = [_evaluated(Inputs._make((*group, shift, product))) for group in groups]
        return tuple(torch.cat(found).unflatten(0, lead) for found in zip(*parts, strict=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output[1:])

    @staticmethod
    def backward(ctx: Any, by: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        """That gradient, times the one by the value."""
        none = (None,) * (len(Inputs._fields) - SLOPES)
        if by is None:
            return *(None,) * SLOPES, *none
        slopes = ctx.saved_tensors
        return *(by.reshape(by.shape + (1,) * (s.dim() - by.dim())) * s for s in slopes), *none


def _evaluated(inputs: Inputs) -> tuple[Tensor, ...]:
    """The value and its gradient by each of the first inputs.

    Of a kernel k between rows, the value is differentiated first by the sums over t of k(x_s, x_t)
    - k(x_s, y_t), u, and of k(y_s, y_t) - k(x_t, y_s), v, and by k(x_s, y_s), p. The gradient by
    k(x_s, x_t) = k(x_t, x_s) is then u_s + u_t, by k(y_s, y_t) v_s + v_t, and by k(x_s, y_t) it is
    -(u_s + v_t), with p beside it where rows are the same.
    """
    x, y, weight, phi, q, epsilon, plain, apart, shift, product = inputs
    metric, gap = weight.mT @ weight, moved_apart(x, y, shift)
    deep, deep_apart = three_distances(x, y, metric), (gap @ metric * gap).sum(-1)
    near, far = two_kernels(deep, plain, _over(phi, 3), _over(q, 3), product)
    near_apart, far_apart = two_kernels(deep_apart, apart, _over(phi, 1), _over(q, 1), product)
    near_sums, far_sums = _row_sums(near), _row_sums(far)
    value, slope, p = _objective(
        torch.lerp(near_sums, far_sums, _over(epsilon, 2)),
        torch.lerp(near_apart, far_apart, _over(epsilon, 1)),
        shift,
    )

    def against(sums: Tensor, pairs: Tensor) -> Tensor:
        return (slope * sums).sum((-2, -1)) + p * pairs.sum(-1)

    by_epsilon = against(far_sums - near_sums, far_apart - near_apart)
    far_apart, near_apart = far_apart + 1, near_apart + 1
    by_q = epsilon * against(_row_sums(far.mul_(plain).add_(plain)), far_apart * apart)
    weights = _outer(slope)
    weighted = torch.addcmul(weights, weights, near)
    if product:
        pairs = _whole(torch.linalg.vecdot(weighted.flatten(-2), plain.flatten(-2)))
        by_q = by_q + (1 - epsilon) * (pairs + p * (near_apart * apart).sum(-1))
    pull_x, pull_y = _pull(weighted, x, y)
    alone = _over(p, 2) * near_apart[..., None] * gap
    pull_x, pull_y = pull_x + alone, pull_y - alone.roll(-shift, -2)
    centre = x.mean(-2, keepdim=True)
    by_metric = _over((epsilon - 1) / phi, 2) * (
        (x - centre).mT @ pull_x + (y - centre).mT @ pull_y
    )
    outward = _over(2 * (epsilon - 1) / phi, 2) * metric
    return (
        value,
        pull_x @ outward,
        pull_y @ outward,
        weight @ (by_metric + by_metric.mT),
        -(metric * by_metric).sum((-2, -1)) / phi,
        by_q / q.square(),
        by_epsilon,
    )


def _objective(sums: Tensor, apart: Tensor, shift: int) -> tuple[Tensor, Tensor, Tensor]:
    """The value from a kernel's row sums, ``[..., 2, n]``, and its entries k(x_s, y_s), ``[...,
    n]``; the gradient by the sums, and by each of these entries, ``[...]``.
    """
    n = sums.shape[-1]
    pairs = max(n * (n - 1), 1)
    own, other = sums.unbind(-2)
    rows = (own + other.roll(shift, -1)) / n
    away = rows - rows.mean(-1, keepdim=True)
    variance = 4 * away.square().mean(-1) + RIDGE
    scale = pairs * variance.sqrt()
    value = (n * rows.sum(-1) + 2 * apart.sum(-1)) / scale
    u = _over(1 / scale, 1) - _over(4 * value / variance, 1) * away / n**2
    return value, torch.stack([u, u.roll(-shift, -1)], -2), 2 / scale


def _over(scalar: Tensor, dims: int) -> Tensor:
    """A number for each leading dimension, shaped to broadcast over ``dims`` more."""
    return scalar.reshape(scalar.shape + (1,) * dims)


def _row_sums(blocks: Tensor) -> Tensor:
    """sum_t k(x_s, x_t) - k(x_s, y_t) and sum_t k(y_s, y_t) - k(x_t, y_s), ``[..., 2, n]``."""
    within_x, within_y, between = blocks.sum(-1).unbind(-2)
    return torch.stack([within_x - between, within_y - blocks.select(-3, 2).sum(-2)], -2)


def _outer(slope: Tensor) -> Tensor:
    """The gradient by every entry of a kernel, ``[..., 3, n, n]``, from that by its row sums; the
    pairs (s, t) and (t, s) within a sample count together.
    """
    u, v = slope.unbind(-2)
    return torch.stack([u, v, -u], -2)[..., None] + torch.stack([u, v, -v], -2)[..., None, :]


def _pull(a: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """sum_t a_st (z_s - z_t) over all rows z_t of both samples, for the rows of x and of y."""
    centre = x.mean(-2, keepdim=True)
    x, y = x - centre, y - centre
    # Transposed, as few rows times a wide matrix are faster than a wide matrix times few columns.
    ahead = (torch.stack([x, y, y], -3).mT @ a.mT).mT
    back = (x.mT @ a.select(-3, 2)).mT
    rows, columns = a.sum(-1), a.select(-3, 2).sum(-2)
    of_x = (rows.select(-2, 0) + rows.select(-2, 2))[..., None] * x
    of_y = (rows.select(-2, 1) + columns)[..., None] * y
    return (
        of_x - ahead.select(-3, 0) - ahead.select(-3, 2),
        of_y - ahead.select(-3, 1) - back,
    )


def _whole(sums: Tensor) -> Tensor:
    """The sum over all pairs, from sums over the pairs of each block; pairs within a sample count
    once.
    """
    within_x, within_y, between = sums.unbind(-1)
    return (within_x + within_y) / 2 + between
