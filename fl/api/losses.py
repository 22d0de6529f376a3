"""The loss of the task at hand, with which every objective begins."""

from __future__ import annotations

from torch import Tensor

from fl.api.task import weighted_mean
from fl.api.tasks.classification import loss as classification_loss
from fl.api.term import Forward

__all__ = ["classification_loss", "cross_entropy", "task_loss", "weighted_mean"]


def task_loss(forward: Forward) -> Tensor:
    """What the data set's task minimises: cross-entropy, where samples have classes."""
    return forward.task.loss(forward.output.outputs, forward.batch)


def cross_entropy(forward: Forward) -> Tensor:
    """For class labels: the weighted mean over the batch, sum_i w_i CE(z_i, y_i) / sum_i w_i."""
    return classification_loss(forward.output.outputs, forward.batch)
