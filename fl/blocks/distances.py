"""Squared distances within and between two samples, precise also if the samples are close.

`pairwise_distances` subtracts rows before it squares them. The other functions multiply matrices:
with the moves v = y - x, |x_s - y_t|^2 is |x_s - x_t|^2 + |v_t|^2 + 2 x_t.v_t - 2 x_s.v_t, and the
others follow in the same way. If nothing moves, all of them are therefore equal to the last bit,
and rounding errors are as small as the moves are, not as large as the samples are.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pairwise_distances(x: Tensor, y: Tensor) -> Tensor:
    """Return |x_s - y_t|^2, [..., n, m].

    |x|^2 + |y|^2 - 2 x.y, which PyTorch computes of more than 25 rows by default, would lose the
    digits of rows that are far from 0 and near each other.

    Args:
        x: Rows, [..., n, d].
        y: Other rows, [..., m, d].
    """
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()


def squared_distances(x: Tensor, y: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
    """Return four squared distances of rows: ``[..., 4, rows, columns]``.

    They are |x_s - x_t|^2, |y_s - y_t|^2, |x_s - y_t|^2 and |y_s - x_t|^2.

    Args:
        x: The first sample, ``[..., n, d]``.
        y: The second sample, with as many rows.
        start: The first row s; t runs from it to the last row.
        stop: The end of the rows s; by default the last row is included.
    """
    moves = y - x
    stacked = torch.stack([x - x.mean(dim=-2, keepdim=True), moves], dim=-3)
    row_points, column_points = stacked[..., start:stop, :], stacked[..., start:, :]
    rows, columns = row_points.shape[-2], column_points.shape[-2]
    gram = 2 * (row_points.flatten(-3, -2) @ column_points.flatten(-3, -2).mT)
    length = stacked[..., 0, start:, :].square().sum(dim=-1)
    growth = (moves * (moves + 2 * stacked[..., 0, :, :]))[..., start:, :].sum(dim=-1)
    within_x = length[..., :rows, None] + length[..., None, :] - gram[..., :rows, :columns]
    x_to_y = growth[..., None, :] - gram[..., :rows, columns:]
    y_to_x = growth[..., :rows, None] - gram[..., rows:, :columns]
    change_within = x_to_y + y_to_x - gram[..., rows:, columns:]
    squares = torch.stack(
        [within_x, within_x + change_within, within_x + x_to_y, within_x + y_to_x], dim=-3
    )
    return squares.clamp(min=0)


def three_distances(x: Tensor, y: Tensor, metric: Tensor | None = None) -> Tensor:
    """Return |x_s - x_t|^2, |y_s - y_t|^2 and |x_s - y_t|^2 of all rows, ``[..., 3, n, n]``.

    It computes `squared_distances` without |y_s - x_t|^2, in fewer passes over the pairs.

    Args:
        x: The first sample, ``[..., n, d]``.
        y: The second sample, with as many rows.
        metric: G, ``[..., d, d]``, symmetric, if |a|^2 means a'Ga and not a'a.
    """
    moves, centred = y - x, x - x.mean(dim=-2, keepdim=True)
    stacked = torch.stack([centred, moves], dim=-3)
    measured = stacked if metric is None else stacked @ metric.unsqueeze(-3)
    measured_centred, measured_moves = measured.unbind(-3)
    length = (measured_centred * centred).sum(dim=-1)
    growth = (measured_moves * (moves + 2 * centred)).sum(dim=-1)
    left_factors = [measured_centred, measured_moves, measured_centred]
    right_factors = [centred, centred + moves, moves]
    products = (-2 * torch.stack(left_factors, dim=-3)) @ torch.stack(right_factors, dim=-3).mT
    within_x, within_y, between = (products.select(-3, block) for block in range(3))
    within_x.add_(length[..., None]).add_(length[..., None, :])
    between.add_(growth[..., None, :])
    # |y_s - y_t|^2 is |x_s - y_t|^2 plus this product and one growth, so no transpose is read.
    within_y.add_(between).add_(growth[..., None]).add_(within_x)
    between.add_(within_x)
    return products.relu_()
