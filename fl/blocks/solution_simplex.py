"""Mixtures of weights by a point of the probability simplex, and random points of it.

They are Floco's alone. They are a block because they call `fl.pytorch`, which methods do not.

Grinwald, Wiesner, Nakajima. Federated Learning over Connected Modes. NeurIPS 2024.
arXiv:2403.03333.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fl.api import Weights, keyed
from fl.pytorch.folding import call_on_stacks

POINT_STREAM = keyed.stream_number("point of a simplex")


def mixed_head(first: Weights, endpoints: Weights, alpha: Tensor) -> dict[str, Tensor]:
    """Return the mixture of the first endpoint and the other ``endpoints`` by a point alpha."""
    return {
        key: call_on_stacks(_mixture, alpha.to(leaf), leaf, endpoints[key])
        for key, leaf in first.items()
    }


def _mixture(alpha: Tensor, first: Tensor, endpoints: Tensor) -> Tensor:
    """Return the mixture of a leaf [..., *shape] and endpoints [..., M - 1, *shape] by [..., M]."""
    dim = alpha.dim() - 1
    leaves = torch.cat([first.unsqueeze(dim), endpoints], dim).flatten(dim + 1)
    return torch.matmul(alpha.unsqueeze(dim), leaves).reshape(first.shape)


def draw_near(key: Tensor, point: Tensor, has_region: Tensor, radius: float) -> Tensor:
    """Draw a point of the simplex, uniformly or at most ``radius`` from a point, [M], float64.

    A uniform point is drawn towards the given one until their distance, the sum of absolute
    differences, is at most a uniform share of the radius.

    Args:
        key: Key of the draw, a scalar.
        point: The point, [M].
        has_region: Whether the draw is near the point, a scalar.
        radius: The largest distance.
    """
    return call_on_stacks(partial(_draw_near, radius), key, point, has_region)


def _draw_near(radius: float, key: Tensor, point: Tensor, has_region: Tensor) -> Tensor:
    """Draw points, [..., M], by keys [...], points [..., M], and whether each is near, [...]."""
    count = point.shape[-1] + 1
    numbers = 1 - keyed.uniform(keyed.derive_keys(key, POINT_STREAM), 0, (count,))
    exponential = -numbers[..., 1:].log()
    offset = exponential / exponential.sum(-1, keepdim=True) - point
    distance = offset.abs().sum(-1).clamp(min=torch.finfo(offset.dtype).tiny)
    share = (radius * numbers[..., 0] / distance).clamp(max=1)
    return point + torch.where(has_region, share, 1).unsqueeze(-1) * offset
