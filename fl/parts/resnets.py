"""Residual networks of torchvision, made for the images and classes at hand.

He, Zhang, Ren, Sun. Deep Residual Learning for Image Recognition. CVPR 2016. arXiv:1512.03385.

The stem for small images is that of Lee et al. (FedL2P, NeurIPS 2023, appendix D): a 3x3
convolution of stride 1 in place of the 7x7 one of stride 2, and no max-pooling.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from torch import nn

from fl.parts.normalisation import normalisation
from fl.parts.projection import classifier

Stem = Literal["cifar", "imagenet"]

BLOCKS = ("maxpool", "layer1", "layer2", "layer3", "layer4")
"""The stem and the four stages."""


def resnet(
    make: Any, published: Any, given: Any, shape: tuple[int, ...], classes: int
) -> nn.Module:
    """Torchvision's ``make(norm_layer=...)``, with our stem and classifier.

    Args:
        published: Torchvision's entry of weights, which ``given.weights`` may name.
        given: A model with the keys of `fl.models.resnet18`.
        shape: (channels, height, width).

    Raises:
        ValueError: For stored weights with another normalisation than theirs.
    """
    from fl.pytorch.vision import pretrained

    if given.weights is not None and given.norm != "batch":
        raise ValueError(f"norm is {given.norm}, but weights are of batch normalisation")
    network: Any = make(norm_layer=partial(normalisation, given.norm))
    if given.weights is not None:
        pretrained(network, given.weights, published)
    head = classifier(network.fc.in_features, classes, given.projection)
    network.fc = nn.Sequential(*head) if given.projection else head[0]
    if given.stem == "cifar":
        network.conv1 = _convolution(shape[0], 3, stride=1)
        network.maxpool = nn.Identity()
    elif shape[0] != 3:
        network.conv1 = _convolution(shape[0], 7, stride=2)
    network.blocks = BLOCKS
    made: nn.Module = network
    return made


def _convolution(depth: int, kernel: int, stride: int) -> nn.Conv2d:
    """A first convolution to 64 channels, initialised as torchvision does it."""
    layer = nn.Conv2d(depth, 64, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
