"""Inputs that are all zeros, to find out the shapes of a network's layers."""

from __future__ import annotations

import torch
from torch import Tensor

from fl.api import BuildContext, Inputs


def zero_inputs(context: BuildContext, count: int, example: Tensor) -> Inputs:
    """Return ``count`` inputs of zeros, with the device and type of ``example``, a weight.

    Tokens are whole numbers.
    """
    if not context.shapes:
        dtype = torch.int64 if context.network.uses_tokens else example.dtype
        return torch.zeros((count, *context.shape), dtype=dtype, device=example.device)
    return {
        name: torch.zeros(
            (count, *shape),
            dtype=torch.int64 if name in context.tokens else example.dtype,
            device=example.device,
        )
        for name, shape in context.shapes.items()
    }
