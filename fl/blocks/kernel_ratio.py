"""MMD^2 / sigma of a deep kernel and its gradient, written out by hand.

Training a kernel needs nothing else (see `fl.blocks.deep_kernel`). Written out, value and gradient
take a few passes over the pairs, client after client, while a cache holds them; automatic
differentiation would store every intermediate result, for all clients, and go through it again.

The last layer of the featurizer is linear. So distances after it are distances before it in the
metric W'W, which has fewer dimensions than there are features.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fl.blocks.distances import three_distances

RIDGE = 1e-8
"""A number added to the variance (Liu et al. 2020, equation 5)."""

ENTRIES_AT_ONCE = 2**20
"""Entries of kernels that are computed at once, so that a cache holds them."""

LOG2_E = math.log2(math.e)


class RatioInputs(NamedTuple):
    """Two samples and a kernel between them; all tensors have the same leading dimensions.

    Attributes:
        x: The first sample at the last layer of the featurizer, ``[..., n, r]``.
        y: The second sample at that layer.
        weight: The weight W of that layer, ``[..., features, r]``.
        phi: The bandwidth of the deep kernel, ``[...]``.
        q: The bandwidth of the plain kernel.
        epsilon: The weight eps of the plain kernel.
        plain: `three_distances` of the samples themselves, ``[..., 3, n, n]``.
        paired_distances: The squared distances of the samples' rows, the second sample's moved by
            ``shift`` positions, ``[..., n]``.
        shift: The number of positions.
        product: Whether q multiplies both terms.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    phi: Tensor
    q: Tensor
    epsilon: Tensor
    plain: Tensor
    paired_distances: Tensor
    shift: int
    product: bool


class RatioGradient(NamedTuple):
    """A gradient by the first six fields of `RatioInputs`; the samples themselves are constants."""

    x: Tensor
    y: Tensor
    weight: Tensor
    phi: Tensor
    q: Tensor
    epsilon: Tensor


def ratio(inputs: RatioInputs) -> tuple[Tensor, RatioGradient]:
    """MMD^2 / sigma, ``[...]``, and its gradient, see `fl.blocks.deep_kernel.DeepKernel.ascent`."""
    *tensors, shift, product = inputs
    leading_shape, n = inputs.x.shape[:-2], inputs.x.shape[-2]
    size = max(1, ENTRIES_AT_ONCE // (3 * n * n))
    if leading_shape.numel() <= size:
        return _ratio_at_once(inputs)
    groups = zip(*(t.flatten(0, len(leading_shape) - 1).split(size) for t in tensors), strict=True)
    results = [_ratio_at_once(RatioInputs._make((*group, shift, product))) for group in groups]
    value = torch.cat([value for value, _ in results]).unflatten(0, leading_shape)
    slopes = zip(*(slopes for _, slopes in results), strict=True)
    return value, RatioGradient._make(
        torch.cat(slope).unflatten(0, leading_shape) for slope in slopes
    )


def _two_kernels(
    deep: Tensor, plain: Tensor, phi: Tensor, q: Tensor, product: bool
) -> tuple[Tensor, Tensor]:
    """Return A - 1 and B - 1: B = exp(-plain / q), A = exp(-deep / phi), times B for a product.

    The memory of ``deep`` is overwritten.

    Less one, kernels are small if rows are near, so that their sums lose no digits. Powers of two
    take a quarter of the time of expm1. A single entry of near rows is then less precise, but its
    rounding error is its own, so that little of it remains in sums over rows
    (docs/results/benchmarks.md).
    """
    plain_kernel, deep_kernel = plain * (-LOG2_E / q), deep.mul_(-LOG2_E / phi)
    if product:
        deep_kernel.add_(plain_kernel)
    return deep_kernel.exp2_().sub_(1), plain_kernel.exp2_().sub_(1)


def paired_differences(x: Tensor, y: Tensor, shift: int) -> Tensor:
    """Rows of x minus those of y, which are moved by ``shift`` positions, ``[..., n, d]``."""
    return x - y.roll(shift, -2)


def _ratio_at_once(inputs: RatioInputs) -> tuple[Tensor, RatioGradient]:
    """Compute `ratio` of all clients at once.

    For a kernel k between rows, the value is first differentiated by two row sums and by the paired
    entries: u_s is the gradient by sum_t k(x_s, x_t) - k(x_s, y_t), v_s the gradient by sum_t
    k(y_s, y_t) - k(x_t, y_s), and p the gradient by k(x_s, y_s). The gradient by k(x_s, x_t) =
    k(x_t, x_s) is then u_s + u_t, by k(y_s, y_t) it is v_s + v_t, and by k(x_s, y_t) it is -(u_s +
    v_t), plus p if both rows have the same index.
    """
    x, y, weight, phi, q, epsilon, plain, paired_distances, shift, product = inputs
    metric, gap = weight.mT @ weight, paired_differences(x, y, shift)
    deep, paired_deep_distances = three_distances(x, y, metric), (gap @ metric * gap).sum(-1)
    deep_kernel, plain_kernel = _two_kernels(deep, plain, _expand(phi, 3), _expand(q, 3), product)
    paired_deep_kernel, paired_plain_kernel = _two_kernels(
        paired_deep_distances, paired_distances, _expand(phi, 1), _expand(q, 1), product
    )
    near_sums, far_sums = _row_sums(deep_kernel), _row_sums(plain_kernel)
    value, slope, p = _objective(
        torch.lerp(near_sums, far_sums, _expand(epsilon, 2)),
        torch.lerp(paired_deep_kernel, paired_plain_kernel, _expand(epsilon, 1)),
        shift,
    )

    def inner_product(sums: Tensor, pairs: Tensor) -> Tensor:
        return (slope * sums).sum((-2, -1)) + p * pairs.sum(-1)

    by_epsilon = inner_product(far_sums - near_sums, paired_plain_kernel - paired_deep_kernel)
    by_q = inner_product(
        *_times_plain(inputs, deep_kernel, plain_kernel, paired_deep_kernel, paired_plain_kernel)
    )
    del plain_kernel  # Its memory is then reused while it is in a cache.
    deep_kernel, paired_deep_kernel = deep_kernel.add_(1), paired_deep_kernel + 1
    weighted = deep_kernel.mul_(_outer(slope))
    centre = x.mean(-2, keepdim=True)
    x, y = x - centre, y - centre
    pull_x, pull_y = _pull(weighted, x, y)
    paired_pull = _expand(p, 2) * paired_deep_kernel[..., None] * gap
    pull_x, pull_y = pull_x + paired_pull, pull_y - paired_pull.roll(-shift, -2)
    by_metric = _expand((epsilon - 1) / phi, 2) * (x.mT @ pull_x + y.mT @ pull_y)
    outer_gradient = _expand(2 * (epsilon - 1) / phi, 2) * metric
    return value, RatioGradient(
        pull_x @ outer_gradient,
        pull_y @ outer_gradient,
        weight @ (by_metric + by_metric.mT),
        -(metric * by_metric).sum((-2, -1)) / phi,
        by_q / q.square(),
        by_epsilon,
    )


def _times_plain(
    inputs: RatioInputs,
    deep_kernel: Tensor,
    plain_kernel: Tensor,
    paired_deep_kernel: Tensor,
    paired_plain_kernel: Tensor,
) -> tuple[Tensor, Tensor]:
    """Multiply kernels with the distances that q divides: row sums, and pairs.

    The memory of ``plain_kernel`` is overwritten.
    """
    plain, paired_distances, epsilon = inputs.plain, inputs.paired_distances, inputs.epsilon
    if not inputs.product:
        sums = _row_sums(plain_kernel.add_(1).mul_(plain))
        return _expand(epsilon, 2) * sums, _expand(epsilon, 1) * (
            paired_plain_kernel + 1
        ) * paired_distances
    kernels = plain_kernel.sub_(deep_kernel).mul_(_expand(epsilon, 3)).add_(deep_kernel)
    paired_kernels = torch.lerp(paired_deep_kernel, paired_plain_kernel, _expand(epsilon, 1))
    return _row_sums(kernels.add_(1).mul_(plain)), (paired_kernels + 1) * paired_distances


def _objective(sums: Tensor, paired_entries: Tensor, shift: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the value and its gradients, from the row sums and paired entries of a kernel.

    The row sums are ``[..., 2, n]``, the entries k(x_s, y_s) ``[..., n]``. The gradients are by the
    sums, and by each of these entries, ``[...]``.
    """
    n = sums.shape[-1]
    pairs = max(n * (n - 1), 1)
    x_sums, y_sums = sums.unbind(-2)
    rows = (x_sums + y_sums.roll(shift, -1)) / n
    deviations = rows - rows.mean(-1, keepdim=True)
    variance = 4 * deviations.square().mean(-1) + RIDGE
    scale = pairs * variance.sqrt()
    value = (n * rows.sum(-1) + 2 * paired_entries.sum(-1)) / scale
    u = _expand(1 / scale, 1) - _expand(4 * value / variance, 1) * deviations / n**2
    return value, torch.stack([u, u.roll(-shift, -1)], -2), 2 / scale


def _expand(scalar: Tensor, dims: int) -> Tensor:
    """Reshape a number for each leading dimension to broadcast over ``dims`` more."""
    return scalar.reshape(scalar.shape + (1,) * dims)


def _row_sums(blocks: Tensor) -> Tensor:
    """Sum k(x_s, x_t) - k(x_s, y_t) and k(y_s, y_t) - k(x_t, y_s) over t, ``[..., 2, n]``."""
    within_x, within_y, between = blocks.sum(-1).unbind(-2)
    return torch.stack([within_x - between, within_y - blocks.select(-3, 2).sum(-2)], -2)


def _outer(slope: Tensor) -> Tensor:
    """Gradient by every entry of a kernel, ``[..., 3, n, n]``, from the gradient by its row sums.

    The pairs (s, t) and (t, s) within a sample count together.
    """
    u, v = slope.unbind(-2)
    return torch.stack([u, v, -u], -2)[..., None] + torch.stack([u, v, -v], -2)[..., None, :]


def _pull(a: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return sum_t a_st (z_s - z_t) over all rows z_t of both samples, for the rows of x and of y.

    The rows should not be far from 0.
    """
    # Transposed, as few rows times a wide matrix are faster than a wide matrix times few columns.
    row_pull = (torch.stack([x, y, y], -3).mT @ a.mT).mT
    column_pull = (x.mT @ a.select(-3, 2)).mT
    rows, columns = a.sum(-1), a.select(-3, 2).sum(-2)
    of_x = (rows.select(-2, 0) + rows.select(-2, 2))[..., None] * x
    of_y = (rows.select(-2, 1) + columns)[..., None] * y
    return (
        of_x - row_pull.select(-3, 0) - row_pull.select(-3, 2),
        of_y - row_pull.select(-3, 1) - column_pull,
    )
