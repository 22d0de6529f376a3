"""Squared distances within and between two samples, to the digits that tell close samples apart.

With the moves v = y - x, |x_s - y_t|^2 is |x_s - x_t|^2 + |v_t|^2 + 2 x_t.v_t - 2 x_s.v_t, and
alike for the others. Where nothing moves, all are therefore the same to the last bit, and rounding
is that of the moves, not of the samples.
"""

from __future__ import annotations

import torch
from torch import Tensor


def squared_distances(x: Tensor, y: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
    """|x_s - x_t|^2, |y_s - y_t|^2, |x_s - y_t|^2 and |y_s - x_t|^2, ``[..., 4, rows, columns]``.

    x and y have as many rows, ``[..., n, d]``. s is ``start`` to ``stop`` and t from ``start`` on;
    by default both are all rows.
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
    found = torch.stack([still, still + moved, still + there, still + back], dim=-3)
    return found.clamp(min=0)


def three_distances(x: Tensor, y: Tensor) -> Tensor:
    """|x_s - x_t|^2, |y_s - y_t|^2 and |x_s - y_t|^2 of all rows, ``[..., 3, n, n]``.

    As `squared_distances`, which has |y_s - x_t|^2 too, in fewer passes over the pairs.
    """
    moves, centred = y - x, x - x.mean(dim=-2, keepdim=True)
    length = centred.square().sum(dim=-1)
    growth = (moves * (moves + 2 * centred)).sum(dim=-1)
    left, right = [centred, moves, centred], [centred, moves, moves]
    found = (-2 * torch.stack(left, dim=-3)) @ torch.stack(right, dim=-3).mT
    still, moved, there = (found.select(-3, block) for block in range(3))
    still.add_(length[..., None]).add_(length[..., None, :])
    there.add_(growth[..., None, :])
    moved.add_(there).add_(there.mT).add_(still)
    there.add_(still)
    return found.relu_()
