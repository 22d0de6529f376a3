"""Inputs that are all zeros, to find out what shapes a network's layers have."""

from __future__ import annotations

import torch
from torch import Tensor

from fl.api import BuildContext, Inputs


def zero_inputs(context: BuildContext, count: int, example: Tensor) -> Inputs:
    """So many inputs of zeros, on the device and of the type of ``like``, a weight; tokens are
    whole numbers.
    """
    if not context.shapes:
        dtype = torch.int64 if context.network.of_tokens else example.dtype
        return torch.zeros((count, *context.shape), dtype=dtype, device=example.device)
    return {
        name: torch.zeros(
            (count, *shape),
            dtype=torch.int64 if name in context.tokens else example.dtype,
            device=example.device,
        )
        for name, shape in context.shapes.items()
    }
