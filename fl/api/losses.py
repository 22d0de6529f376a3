"""The loss of the task at hand, with which every objective begins."""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor

from fl.api.task import weighted_mean
from fl.api.tasks.classification import loss as classification_loss
from fl.api.term import Forward

__all__ = ["MOVED", "classification_loss", "cross_entropy", "task_loss", "weighted_mean"]

MOVED = {
    "Adaptive": "fl.api.term",
    "Compared": "fl.api.term",
    "Periodic": "fl.api.term",
    "Reference": "fl.api.term",
    "SHARED": "fl.api.term",
    "See": "fl.api.term",
    "Term": "fl.api.term",
    "alignment": "fl.parts.alignment",
    "model_contrast": "fl.parts.contrast",
    "proximal": "fl.parts.proximal",
    "supervised_contrast": "fl.parts.supervised",
}
"""Names that plugins may import from here and that have a file of their own now, so that a run is
named by the terms that it uses alone; `fl.base.identity` follows them.
"""


def __getattr__(name: str) -> Any:
    if name not in MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(MOVED[name]), name)


def task_loss(forward: Forward) -> Tensor:
    """What the data set's task minimises: cross-entropy, where samples have classes."""
    return forward.task.loss(forward.output.outputs, forward.batch)


def cross_entropy(forward: Forward) -> Tensor:
    """For class labels: the weighted mean over the batch, sum_i w_i CE(z_i, y_i) / sum_i w_i."""
    return classification_loss(forward.output.outputs, forward.batch)
