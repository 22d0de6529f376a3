"""Classification: one class for each sample.

No paper: training minimises cross-entropy, accuracy and balanced accuracy are reported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api.alteration import MIXED, mixed_labels
from fl.api.protocols import Batch
from fl.api.task import DEFAULT, Task, client_means, weighted_mean
from fl.pytorch.folding import call_on_stacks
from fl.pytorch.torch_internals import innermost_transform

CLASS_WEIGHT, SMOOTHING = "class_weight", "smoothing"
"""Keys of batches if a run uses `class_weights` or `label_smoothing` of its training, [b] each."""


def classification_loss(outputs: Tensor, batch: Batch) -> Tensor:
    """Return the weighted mean cross-entropy.

    The batch can bring mixes of labels (`fl.api.alteration`), label smoothing, which also applies
    to mixed labels, and class weights, which go by the sample's own class.

    Args:
        outputs: Outputs of the network, [b, classes].
        batch: The batch.
    """
    weight, smoothing = batch["weight"], batch.get(SMOOTHING)
    if CLASS_WEIGHT in batch:
        weight = weight * batch[CLASS_WEIGHT]
    if mixes := batch.get(MIXED):
        shares = mixed_labels(batch["y"], outputs, mixes)
        values = F.cross_entropy(outputs, shares, reduction="none")
        return weighted_mean(_smoothed(values, outputs, smoothing), {"weight": weight})
    if smoothing is None:
        return call_on_stacks(_mean, outputs, batch["y"], weight)
    return call_on_stacks(_smoothed_mean, outputs, batch["y"], weight, smoothing)


def _mean(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    if innermost_transform() is None:
        mean: Tensor = _MeanCrossEntropy.apply(outputs, labels, weight)  # type: ignore[no-untyped-call]
        return mean
    return weighted_mean(cross_entropy(outputs, labels), {"weight": weight})


def _smoothed_mean(outputs: Tensor, labels: Tensor, weight: Tensor, smoothing: Tensor) -> Tensor:
    values = _smoothed(cross_entropy(outputs, labels), outputs, smoothing)
    return weighted_mean(values, {"weight": weight})


class _MeanCrossEntropy(torch.autograd.Function):
    """Weighted mean of `cross_entropy`, with a gradient of fewer operators than autograd's."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
        """Return the mean over the samples, [...]."""
        logs, places, shares = _log_likelihoods(outputs, labels, weight)
        ctx.save_for_backward(outputs, places, shares)
        ctx.logs = logs
        return _mean_of(logs, places, shares)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient by the outputs, which can be differentiated again."""
        outputs, places, shares = ctx.saved_tensors
        logs = outputs.log_softmax(-1) if torch.is_grad_enabled() else ctx.logs
        return _slopes(logs, places, slope[..., None] * shares), None, None


def _log_likelihoods(
    outputs: Tensor, labels: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log softmax(z) [..., b, classes], labels [..., b, 1], and shares of samples [..., b].

    The shares are w_i / sum_i w_i; 0 if all weights are 0.
    """
    total = weight.sum(-1, keepdim=True)
    return outputs.log_softmax(-1), labels[..., None], weight / (total + (total == 0))


def _mean_of(logs: Tensor, places: Tensor, shares: Tensor) -> Tensor:
    """Return sum_i s_i (-log softmax(z_i)_y), [...]."""
    return -(logs.gather(-1, places).squeeze(-1) * shares).sum(-1)


def _slopes(logs: Tensor, places: Tensor, shares: Tensor) -> Tensor:
    """Return the gradient of `_mean_of` by z: s_i (softmax(z_i) - 1 at y_i), [..., b, classes]."""
    factors = shares[..., None]
    return (logs.exp() * factors).scatter_add(-1, places, -factors)


def loss_gradient(outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor] | None:
    """Return `classification_loss` of a stack of clients and its gradient, see `Task`."""
    if MIXED in batch or SMOOTHING in batch:
        return None
    weight = batch["weight"] * batch[CLASS_WEIGHT] if CLASS_WEIGHT in batch else batch["weight"]
    logs, places, shares = _log_likelihoods(outputs, batch["y"], weight)
    return _mean_of(logs, places, shares), _slopes(logs, places, shares)


def _smoothed(values: Tensor, outputs: Tensor, smoothing: Tensor | None) -> Tensor:
    """Return (1 - e) v - e/C sum_c log softmax(z)_c, as cross-entropy is linear in the target.

    The sum is over the C classes that a method does not exclude by a logit of minus infinity, as
    FedRoD does.
    """
    if smoothing is None:
        return values
    shares = outputs.log_softmax(-1)
    possible = outputs > -math.inf
    mean = shares.where(possible, 0).sum(-1) / possible.sum(-1)
    return (1 - smoothing) * values - smoothing * mean


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return -log softmax(z)_y of each sample, [..., b].

    It equals PyTorch's function to the bit. That function, in a stack of clients, loads SymPy and
    looks for labels to ignore at every step.

    Args:
        outputs: z, [..., b, classes].
        labels: y, [..., b].
    """
    return -outputs.log_softmax(-1).gather(-1, labels[..., None]).squeeze(-1)


def look(outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return loss, label and whether the largest output is correct for each sample, [b] each."""
    losses = cross_entropy(outputs, labels)
    return {"loss": losses, "correct": outputs.argmax(-1) == labels, "label": labels}


def conclude(
    values: Mapping[str, Tensor], sizes: np.ndarray, classes: int
) -> dict[str, np.ndarray]:
    """Return mean loss, accuracy and balanced accuracy of each client, [clients]."""
    loss, correct, label = (values[key].cpu().numpy() for key in ("loss", "correct", "label"))
    return {
        "loss": client_means(loss, sizes),
        "accuracy": client_means(correct, sizes),
        "balanced_accuracy": _balanced(*by_class(correct, label, sizes, classes)),
    }


def _balanced(correct: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the accuracy by class, averaged over the classes that occur, [clients].

    Args:
        correct: Number of correct samples by class, [clients, classes].
        counts: Number of samples by class, [clients, classes].
    """
    return np.asarray((correct / counts.clip(min=1)).sum(1) / (counts > 0).sum(1))


def by_class(
    correct: np.ndarray, labels: np.ndarray, sizes: np.ndarray, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of correct samples and of samples by class, [clients, classes] each.

    Args:
        correct: 0 or 1 for each sample, one client after another, [n].
        labels: Their classes, [n].
        sizes: Number of samples of each client, [clients].
        classes: Number of classes.
    """
    cell = np.repeat(np.arange(len(sizes)), sizes) * classes + labels
    cells = len(sizes) * classes
    correct_counts = np.bincount(cell, weights=correct, minlength=cells)
    counts = np.bincount(cell, minlength=cells)
    return correct_counts.reshape(-1, classes), counts.reshape(-1, classes)


def invent(count: int, classes: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return labels that repeat all classes in their order, [count]."""
    return np.arange(count) % classes


CLASSIFICATION = Task(
    name=DEFAULT,
    label_name="class labels",
    labels="y",
    metrics=("accuracy", "balanced_accuracy"),
    chunk=1024,
    loss=classification_loss,
    look=look,
    conclude=conclude,
    invent=invent,
    supports_mixed_labels=True,
    loss_gradient=loss_gradient,
)


def classification() -> Task:
    """Return the task."""
    return CLASSIFICATION
