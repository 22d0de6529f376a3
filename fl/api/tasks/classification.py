"""One class for each sample.

No paper's: cross-entropy is minimised, accuracy and balanced accuracy are reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from fl.api.mixed_labels import MIXED, mixed_labels
from fl.api.task import DEFAULT, Task, means, weighted_mean
from fl.pytorch.folding import whole


def classification_loss(outputs: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """The weighted mean cross-entropy.

    Labels are mixed where the batch says how, see `fl.api.mixed_labels`.

    Args:
        outputs: [b, classes].
    """
    if mixes := batch.get(MIXED):
        shares = mixed_labels(batch["y"], outputs, mixes)
        return weighted_mean(F.cross_entropy(outputs, shares, reduction="none"), batch)
    return whole(_mean, outputs, batch["y"], batch["weight"])


def _mean(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    return weighted_mean(cross_entropy(outputs, labels), {"weight": weight})


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
