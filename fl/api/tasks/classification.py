"""One class for each sample.

No paper's: cross-entropy is minimised, accuracy and balanced accuracy are reported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from fl.api.mixed_labels import MIXED, mixed_labels
from fl.api.task import DEFAULT, Task, means, weighted_mean
from fl.pytorch.folding import whole

CLASS_WEIGHT, SMOOTHING = "class_weight", "smoothing"
"""In batches of runs that ask for them, [b] each: `class_weights` and `label_smoothing` of
`fl.api.training.Training`.
"""


def classification_loss(outputs: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """The weighted mean cross-entropy.

    Labels are mixed where the batch says how, see `fl.api.mixed_labels`; mixed or not, they are
    smoothed, and samples weigh by their own class, where it says so.

    Args:
        outputs: [b, classes].
    """
    weight, smoothing = batch["weight"], batch.get(SMOOTHING)
    if CLASS_WEIGHT in batch:
        weight = weight * batch[CLASS_WEIGHT]
    if mixes := batch.get(MIXED):
        shares = mixed_labels(batch["y"], outputs, mixes)
        values = F.cross_entropy(outputs, shares, reduction="none")
        return weighted_mean(_smoothed(values, outputs, smoothing), {"weight": weight})
    more = () if smoothing is None else (smoothing,)
    return whole(_mean, outputs, batch["y"], weight, *more)


def _mean(
    outputs: Tensor, labels: Tensor, weight: Tensor, smoothing: Tensor | None = None
) -> Tensor:
    values = _smoothed(cross_entropy(outputs, labels), outputs, smoothing)
    return weighted_mean(values, {"weight": weight})


def _smoothed(values: Tensor, outputs: Tensor, smoothing: Tensor | None) -> Tensor:
    """(1 - e) v - e/C sum_c log softmax(z)_c, as cross-entropy is linear in the target; over the C
    classes that a method does not rule out by a logit of minus infinity (FedRoD).
    """
    if smoothing is None:
        return values
    shares = outputs.log_softmax(-1)
    possible = outputs > -math.inf
    mean = shares.where(possible, 0).sum(-1) / possible.sum(-1)
    return (1 - smoothing) * values - smoothing * mean


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """-log softmax(z)_y of each sample, [..., b].

    To the bit what PyTorch's own function gives, which in a stack of clients loads SymPy and looks
    at each step for labels to ignore.

    Args:
        outputs: z, [..., b, classes].
        labels: y, [..., b].
    """
    return -outputs.log_softmax(-1).gather(-1, labels[..., None]).squeeze(-1)


def look(outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Loss of each sample, whether its largest output is right, and its label, [b] each."""
    losses = cross_entropy(outputs, labels)
    return {"loss": losses, "correct": outputs.argmax(-1) == labels, "label": labels}


def conclude(seen: Mapping[str, Tensor], sizes: np.ndarray, classes: int) -> dict[str, np.ndarray]:
    """Mean loss, accuracy and balanced accuracy of each client, [clients]."""
    loss, correct, label = (seen[key].cpu().numpy() for key in ("loss", "correct", "label"))
    return {
        "loss": means(loss, sizes),
        "accuracy": means(correct, sizes),
        "balanced_accuracy": _balanced(*by_class(correct, label, sizes, classes)),
    }


def _balanced(right: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The share of right samples of each class, averaged over the classes that occur, [clients].

    Args:
        right, counts: Right samples and all of them by class, [clients, classes].
    """
    return np.asarray((right / counts.clip(min=1)).sum(1) / (counts > 0).sum(1))


def by_class(
    correct: np.ndarray, labels: np.ndarray, sizes: np.ndarray, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """How many samples of each client are right, and how many there are, [clients, classes] each.

    Args:
        correct: 0 or 1 per sample, of one client after another, [n].
        labels: [n].
        sizes: How many samples each client has, [clients].
    """
    cell = np.repeat(np.arange(len(sizes)), sizes) * classes + labels
    cells = len(sizes) * classes
    right = np.bincount(cell, weights=correct, minlength=cells)
    counts = np.bincount(cell, minlength=cells)
    return right.reshape(-1, classes), counts.reshape(-1, classes)


def invent(count: int, classes: int, shape: tuple[int, ...]) -> np.ndarray:
    """Labels that go through the classes in turn, [count]."""
    return np.arange(count) % classes


CLASSIFICATION = Task(
    name=DEFAULT,
    given="class labels",
    labels="y",
    metrics=("accuracy", "balanced_accuracy"),
    chunk=1024,
    loss=classification_loss,
    look=look,
    conclude=conclude,
    invent=invent,
    mixes=True,
)


def classification() -> Task:
    """The task."""
    return CLASSIFICATION
