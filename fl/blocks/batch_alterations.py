"""What alterations have in common: whether a batch is altered, whom a sample is mixed with."""

from __future__ import annotations

import torch
from torch import Tensor

from fl.api import BuildContext, FedloomError, keyed


def is_altered(key: Tensor, stream: int, p: float) -> Tensor:
    """Whether a batch is altered, with probability p: a scalar.

    Only the first sample's key decides, whoever else is in the batch.

    Args:
        key: Of each sample, [b].
    """
    return keyed.uniform(key[0], stream) < p


def draw_partners(key: Tensor, weight: Tensor, stream: int) -> Tensor:
    """A permutation [b] of the samples that have a weight; the others keep their places.

    Args:
        key: Of each sample, [b]; it decides the draw.
    """
    position = torch.arange(len(key), device=key.device)
    is_present = weight > 0
    # Both orders begin with the samples that weigh something and end with the others as they stand.
    shuffled = torch.where(is_present, keyed.uniform(key, stream), 1.0 + position).argsort(
        stable=True
    )
    ordered = torch.where(is_present, position, len(key) + position).argsort(stable=True)
    return shuffled[ordered.argsort(stable=True)]


def check_mixed_labels(context: BuildContext, name: str) -> None:
    """Raise `FedloomError` where the task's loss knows no mixed labels."""
    if not context.task.mixes:
        raise FedloomError(
            f"alterations.{name}: mixes labels, which the loss of {context.task.name} cannot take. "
            "Allowed: a data set of another task"
        )


def check_feature_maps(features: Tensor, location: str, layer: str) -> None:
    """Raise `FedloomError` unless a layer gives images, [b, c, h, w].

    Args:
        location: The key that names the layer.
    """
    if features.dim() != 4:
        shape = ", ".join(map(str, features.shape[1:]))
        raise FedloomError(
            f"{location}: {layer} gives [b, {shape}]. Allowed: layers that give images, "
            "[b, channels, height, width]"
        )
