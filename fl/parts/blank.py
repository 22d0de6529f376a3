"""Inputs that are all zeros, to find out what shapes a network's layers have."""

from __future__ import annotations

import torch
from torch import Tensor

from fl.api import Inputs, Setting


def blank_inputs(setting: Setting, count: int, like: Tensor) -> Inputs:
    """So many inputs of zeros, on the device and of the type of ``like``, a weight; tokens are
    whole numbers.
    """
    if not setting.shapes:
        kind = torch.int64 if setting.network.of_tokens else like.dtype
        return torch.zeros((count, *setting.shape), dtype=kind, device=like.device)
    return {
        name: torch.zeros(
            (count, *shape),
            dtype=torch.int64 if name in setting.tokens else like.dtype,
            device=like.device,
        )
        for name, shape in setting.shapes.items()
    }
