"""Segmentation: a class for each pixel of an image.

M. Jiang, Z. Wang and Q. Dou. HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on
Heterogeneous Medical Images. AAAI 2022. arXiv:2112.10775 (loss and metric, which FedFA uses too).

The loss is the mean of two losses: the mean cross-entropy over all pixels of a batch, and the soft
Dice loss of F. Milletari, N. Navab and S.-A. Ahmadi (V-Net. 3DV 2016). Overlaps and volumes of each
class, the background included, are summed over the batch before they are divided.

``dice`` is the mean over a client's images of each image's Dice coefficient (not that of overlaps
summed over images). An image's coefficient is the mean over classes, the background included, as in
the released code of HarmoFL and FedFA. ``foreground_dice`` leaves the background, class 0, out. A
class that is neither in an image's mask nor predicted counts 1. The released code counts 0, but
leaves such images out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api.alteration import MIXED, Mix, mixed
from fl.api.protocols import Batch
from fl.api.task import Task, client_means, weighted_mean

SMOOTH = 1e-5
"""Pixels added to both sides of a Dice coefficient, so that 0 / 0 is 1."""


def loss(outputs: Tensor, batch: Batch) -> Tensor:
    """Return (cross-entropy + soft Dice loss) / 2.

    If the batch has mixes (`fl.api.alteration`), a pixel has a share of several classes.

    Args:
        outputs: Outputs of the network, [b, classes, h, w].
        batch: Batch with the masks ``y`` [b, h, w].
    """
    masks: Tensor = batch["y"]
    if mixes := batch.get(MIXED):
        entropy, overlap, volume = _soft_components(outputs, *_mixed(outputs, masks, mixes))
    else:
        entropy, overlap, volume = _soft(outputs, masks)
    weight = batch["weight"][:, None]
    return (
        weighted_mean(entropy, batch)
        + _dice_loss((weight * overlap).sum(0), (weight * volume).sum(0))
    ) / 2


def _soft(outputs: Tensor, masks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the components of the loss by image.

    Returns:
        The mean cross-entropy [b], and by class the overlap of probabilities and mask and the
        volume of both, [b, classes] each.
    """
    return _soft_components(outputs, masks, _members(masks, outputs))


def _soft_components(
    outputs: Tensor, masks: Tensor, members: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the results of `_soft`, with ``masks`` as a target of cross-entropy."""
    entropy = F.cross_entropy(outputs, masks, reduction="none").mean((1, 2))
    shares = outputs.softmax(1)
    volume = shares.sum((2, 3)) + members.sum((2, 3))
    return entropy, (shares * members).sum((2, 3)), volume


def _mixed(outputs: Tensor, masks: Tensor, mixes: Sequence[Mix]) -> tuple[Tensor, Tensor]:
    """Return shares of classes after all mixes, [b, classes, h, w], as target and as members."""
    members = _members(masks, outputs)
    for partner, share in mixes:
        members = mixed(members, partner, share)
    return members, members


def _members(masks: Tensor, outputs: Tensor) -> Tensor:
    """Return 1 for the class of a pixel and 0 for all others, [b, classes, h, w]."""
    classes = torch.arange(outputs.shape[1], device=masks.device)[:, None, None]
    return (masks[:, None] == classes).to(outputs.dtype)


def _dice(overlap: Any, volume: Any) -> Any:
    """Return the Dice coefficient 2 |A and B| / (|A| + |B|)."""
    return (2 * overlap + SMOOTH) / (volume + SMOOTH)


def _dice_loss(overlap: Tensor, volume: Tensor) -> Tensor:
    """Return the soft Dice loss of sums by class, [classes]."""
    loss: Tensor = 1 - _dice(overlap, volume).mean()
    return loss


def look(outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return the components of the loss, and the Dice coefficient by class, [b, classes]."""
    entropy, overlap, volume = _soft(outputs, labels)
    predicted = _members(outputs.argmax(1), outputs)
    members = _members(labels, outputs)
    hit = (predicted * members).sum((2, 3))
    dice = _dice(hit, predicted.sum((2, 3)) + members.sum((2, 3)))
    return {"entropy": entropy, "overlap": overlap, "volume": volume, "dice": dice}


def conclude(
    values: Mapping[str, Tensor], sizes: np.ndarray, classes: int
) -> dict[str, np.ndarray]:
    """Return loss over all images as one batch and mean Dice of each client, [clients]."""
    entropy, overlap, volume, dice = (
        client_means(values[key].cpu().numpy(), sizes)
        for key in ("entropy", "overlap", "volume", "dice")
    )
    images = sizes[:, None]
    missed = 1 - _dice(images * overlap, images * volume).mean(1)
    return {
        "loss": (entropy + missed) / 2,
        "dice": dice.mean(1),
        "foreground_dice": dice[:, 1:].mean(1),
    }


def invent(count: int, classes: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return masks whose pixels repeat all classes in their order, [count, h, w]."""
    height, width = shape[-2:]
    return np.arange(count * height * width).reshape(count, height, width) % classes


SEGMENTATION = Task(
    name="segmentation",
    label_name="masks",
    labels="mask",
    metrics=("dice", "foreground_dice"),
    chunk=16,
    loss=loss,
    look=look,
    conclude=conclude,
    invent=invent,
    has_classes=False,
    supports_mixed_labels=True,
)


def segmentation() -> Task:
    """Return the task."""
    return SEGMENTATION
