"""Functions that alterations share: whether a batch is altered, and how samples are paired."""

from __future__ import annotations

import torch
from torch import Tensor

from fl.api import BuildContext, FedloomError, keyed


def is_altered(key: Tensor, stream: int, p: float) -> Tensor:
    """Draw whether a batch is altered, with probability p; a scalar.

    Only the first sample's key decides, whatever other samples the batch has.

    Args:
        key: The key of each sample, [b].
        stream: The stream of the key's random numbers.
        p: The probability.
    """
    return keyed.uniform(key[0], stream) < p


def draw_partners(key: Tensor, weight: Tensor, stream: int) -> Tensor:
    """Draw a permutation [b] of the samples with a weight; the others keep their positions.

    Args:
        key: The key of each sample, [b], which decides the draw.
        weight: The weight of each sample, [b].
        stream: The stream of the keys' random numbers.
    """
    position = torch.arange(len(key), device=key.device)
    is_present = weight > 0
    # Both orders begin with the samples with a weight and end with the others in their order.
    shuffled = torch.where(is_present, keyed.uniform(key, stream), 1.0 + position).argsort(
        stable=True
    )
    ordered = torch.where(is_present, position, len(key) + position).argsort(stable=True)
    return shuffled[ordered.argsort(stable=True)]


def check_mixed_labels(context: BuildContext, name: str) -> None:
    """Raise `FedloomError` if the task's loss cannot take mixed labels."""
    if not context.task.supports_mixed_labels:
        raise FedloomError(
            f"alterations.{name}: mixes labels, which the loss of {context.task.name} cannot take",
            advice="choose a data set of another task, or another alteration",
        )


def check_feature_maps(features: Tensor, location: str, layer: str) -> None:
    """Raise `FedloomError` unless the output of a layer has the shape of images, [b, c, h, w].

    Args:
        features: The output of the layer.
        location: The key that names the layer.
        layer: The layer's name.
    """
    if features.dim() != 4:
        shape = ", ".join(map(str, features.shape[1:]))
        raise FedloomError(
            f"{location}: the output of {layer} has the shape [b, {shape}], not that of images",
            advice="name a layer with outputs [b, channels, height, width]",
        )
