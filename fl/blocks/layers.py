"""Linear layers as tensors, for what a method has beside the network."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def linear(draw: torch.Generator, like: Tensor, inside: int, outside: int) -> dict[str, Tensor]:
    """``weight`` [outside, inside] and ``bias`` [outside], with PyTorch's first values: uniform
    between -1 / sqrt(inside) and 1 / sqrt(inside).

    Args:
        like: Has their precision and device.
    """
    bound = 1 / math.sqrt(inside)

    def uniform(*shape: int) -> Tensor:
        made = torch.rand(*shape, generator=draw, dtype=torch.float64) * 2 - 1
        return (made * bound).to(like)

    return {"weight": uniform(outside, inside), "bias": uniform(outside)}
