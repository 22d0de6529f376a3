"""One class for each sample.

No paper's: cross-entropy is minimised; accuracy and balanced accuracy are reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from fl.mixed_labels import MIXED, mixed_labels
from fl.task import DEFAULT, Task, weighted_mean


def loss(outputs: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """The weighted mean cross-entropy.

    Labels are mixed where the batch says how, see `fl.mixed_labels`.

    Args:
        outputs: [b, classes].
    """
    labels: Tensor = batch["y"]
    if mixes := batch.get(MIXED):
        labels = mixed_labels(labels, outputs, mixes)
    return weighted_mean(F.cross_entropy(outputs, labels, reduction="none"), batch)


def look(outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Loss of each sample, whether its largest output is right, and its label, [b] each."""
    losses = F.cross_entropy(outputs, labels, reduction="none")
    return {"loss": losses, "correct": outputs.argmax(-1) == labels, "label": labels}


def conclude(seen: Mapping[str, Tensor], classes: int) -> dict[str, float]:
    """Mean loss, accuracy and balanced accuracy."""
    correct = seen["correct"].double()
    return {
        "loss": float(seen["loss"].double().mean()),
        "accuracy": float(correct.mean()),
        "balanced_accuracy": balanced_accuracy(
            correct.cpu().numpy(), seen["label"].cpu().numpy(), classes
        ),
    }


def balanced_accuracy(correct: np.ndarray, labels: np.ndarray, classes: int) -> float:
    """The share of right samples of each class, averaged over the classes that occur.

    Args:
        correct: 0 or 1 per sample, [n].
        labels: [n].
    """
    held = np.bincount(labels, minlength=classes)
    right = np.bincount(labels, weights=correct, minlength=classes)
    return float((right[held > 0] / held[held > 0]).mean())


def invent(count: int, classes: int, shape: tuple[int, ...]) -> np.ndarray:
    """Labels that go through the classes in turn, [count]."""
    return np.arange(count) % classes


CLASSIFICATION = Task(
    name=DEFAULT,
    given="class labels",
    labels="y",
    metrics=("accuracy", "balanced_accuracy"),
    chunk=1024,
    loss=loss,
    look=look,
    conclude=conclude,
    invent=invent,
)


def classification() -> Task:
    """The task."""
    return CLASSIFICATION
