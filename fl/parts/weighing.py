"""Means over a batch in which some samples weigh nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def weighted_mean(values: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """sum_i w_i v_i / sum_i w_i over the batch, for one value per sample, [b]; 0 without weight."""
    total = batch["weight"].sum()
    return (values * batch["weight"]).sum() / torch.where(total > 0, total, 1)
