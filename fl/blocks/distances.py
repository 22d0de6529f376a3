"""Squared distances within and between two samples, precise also where the samples are close.

With the moves v = y - x, |x_s - y_t|^2 is |x_s - x_t|^2 + |v_t|^2 + 2 x_t.v_t - 2 x_s.v_t, and the
others follow in the same way. Where nothing moves, all of them are therefore equal to the last bit,
and rounding errors are as small as the moves are, not as large as the samples are.
"""

from __future__ import annotations

import torch
from torch import Tensor


def squared_distances(x: Tensor, y: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
    """|x_s - x_t|^2, |y_s - y_t|^2, |x_s - y_t|^2 and |y_s - x_t|^2, ``[..., 4, rows, columns]``.

    Args:
        x, y: The same number of rows each, ``[..., n, d]``.
        start, stop: The rows s; t runs from ``start`` to the last row. By default both are all
            rows.
    """
    moves = y - x
    both = torch.stack([x - x.mean(dim=-2, keepdim=True), moves], dim=-3)
    left, right = both[..., start:stop, :], both[..., start:, :]
    rows, columns = left.shape[-2], right.shape[-2]
    gram = 2 * (left.flatten(-3, -2) @ right.flatten(-3, -2).mT)
    length = both[..., 0, start:, :].square().sum(dim=-1)
    growth = (moves * (moves + 2 * both[..., 0, :, :]))[..., start:, :].sum(dim=-1)
    still = length[..., :rows, None] + length[..., None, :] - gram[..., :rows, :columns]
    there = growth[..., None, :] - gram[..., :rows, columns:]
    back = growth[..., :rows, None] - gram[..., rows:, :columns]
    moved = there + back - gram[..., rows:, columns:]
    squares = torch.stack([still, still + moved, still + there, still + back], dim=-3)
    return squares.clamp(min=0)


def three_distances(x: Tensor, y: Tensor, metric: Tensor | None = None) -> Tensor:
    """|x_s - x_t|^2, |y_s - y_t|^2 and |x_s - y_t|^2 of all rows, ``[..., 3, n, n]``.

    As `squared_distances` without |y_s - x_t|^2, in fewer passes over the pairs.

    Args:
        metric: G, ``[..., d, d]``, symmetric, where |a|^2 is not a'a but a'Ga.
    """
    moves, centred = y - x, x - x.mean(dim=-2, keepdim=True)
    both = torch.stack([centred, moves], dim=-3)
    measured = both if metric is None else both @ metric.unsqueeze(-3)
    measured_centred, measured_moves = measured.unbind(-3)
    length = (measured_centred * centred).sum(dim=-1)
    growth = (measured_moves * (moves + 2 * centred)).sum(dim=-1)
    left = [measured_centred, measured_moves, measured_centred]
    right = [centred, centred + moves, moves]
    products = (-2 * torch.stack(left, dim=-3)) @ torch.stack(right, dim=-3).mT
    still, moved, there = (products.select(-3, block) for block in range(3))
    still.add_(length[..., None]).add_(length[..., None, :])
    there.add_(growth[..., None, :])
    # Of |y_s - y_t|^2 the product has what |x_s - y_t|^2 lacks but for one growth, so that nothing
    # is read across rows.
    moved.add_(there).add_(growth[..., None]).add_(still)
    there.add_(still)
    return products.relu_()
