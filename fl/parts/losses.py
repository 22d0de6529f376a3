"""The loss of classification, and means over a batch: what every objective begins with."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.term import Batch, Forward

MOVED = {
    "Adaptive": "fl.term",
    "Beside": "fl.term",
    "Periodic": "fl.term",
    "Reference": "fl.term",
    "SHARED": "fl.term",
    "See": "fl.term",
    "Term": "fl.term",
    "alignment": "fl.parts.alignment",
    "model_contrast": "fl.parts.contrast",
    "proximal": "fl.parts.proximal",
    "supervised_contrast": "fl.parts.supervised",
}
"""Names that plugins may import from here and that have a file of their own now, so that a run is
named by the terms that it uses alone; `fl.code.identity` follows them.
"""


def __getattr__(name: str) -> Any:
    if name not in MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(MOVED[name]), name)


def weighted_mean(values: Tensor, batch: Batch) -> Tensor:
    """sum_i w_i v_i / sum_i w_i over the batch, for one value per sample, [b]; 0 without weight."""
    total = batch["weight"].sum()
    return (values * batch["weight"]).sum() / torch.where(total > 0, total, 1)


def classification(outputs: Tensor, batch: Batch) -> Tensor:
    """The weighted mean cross-entropy of ``outputs``, [b, classes]."""
    return weighted_mean(F.cross_entropy(outputs, batch["y"], reduction="none"), batch)


def cross_entropy(forward: Forward) -> Tensor:
    """sum_i w_i CE(z_i, y_i) / sum_i w_i, the weighted mean over the batch."""
    return classification(forward.output.outputs, forward.batch)
