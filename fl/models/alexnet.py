"""AlexNet with normalisation: five convolutional blocks and two hidden layers.

Krizhevsky, Sutskever, Hinton. ImageNet Classification with Deep Convolutional Neural Networks. NIPS
2012.

It is the version of FedBN (Li et al. ICLR 2021) and FedFA (Zhou and Konukoglu. ICLR 2023) for
images of 256 x 256: normalised after every layer but the last, without dropout. Its blocks, in
FedFA's order, are `pool1`, `pool2`, `relu3`, `relu4`, `pool5`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import nn

from fl.api import Count
from fl.blocks.norm_layers import Norm, norm_layer

POOLED_BLOCKS = (1, 2, 5)
"""Blocks that end in pooling."""

SMALLEST_LARGE, SMALLEST_SMALL = 63, 8
"""The smallest height and width, by stem, of which convolutions and poolings leave a pixel."""


@dataclass(frozen=True)
class AlexNet:
    """AlexNet with normalisation.

    Attributes:
        stem: `imagenet`, convolution 11x11 of stride 4 and pooling 3x3 of stride 2, for images of
            63 pixels or more; `cifar`, 5x5 of stride 1 and pooling 2x2, for small ones.
        hidden: width of the two hidden layers, 4,096 in FedBN.
        channels: channels of the five blocks.
        norm: normalisation of the blocks and the hidden layers.
    """

    stem: Literal["imagenet", "cifar"] = "imagenet"
    hidden: Count = 1024
    channels: tuple[Count, ...] = (64, 192, 384, 256, 256)
    norm: Norm = "batch"

    arithmetic: ClassVar[str] = "native"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model of images (channels, height, width) that returns logits."""
        depth, height, width = shape
        large = self.stem == "imagenet"
        if len(self.channels) != 5:
            raise ValueError(f"channels must have five numbers, but has {len(self.channels)}")
        if min(height, width) < (smallest := SMALLEST_LARGE if large else SMALLEST_SMALL):
            raise ValueError(f"images must be at least {smallest} x {smallest}")
        layers: list[tuple[str, nn.Module]] = []
        for number, outputs in enumerate(self.channels, 1):
            layers += [
                (f"convolution{number}", _convolution(number, depth, outputs, large)),
                (f"norm{number}", norm_layer(self.norm, outputs)),
                (f"relu{number}", nn.ReLU()),
            ]
            if number in POOLED_BLOCKS:
                layers.append((f"pool{number}", nn.MaxPool2d(3, 2) if large else nn.MaxPool2d(2)))
            depth = outputs
        inner = depth * (36 if large else (height // 8) * (width // 8))
        network: Any = nn.Sequential(OrderedDict(layers + self._classifier(inner, classes, large)))
        network.blocks = ("pool1", "pool2", "relu3", "relu4", "pool5")
        module: nn.Module = network
        return module

    def _classifier(self, inner: int, classes: int, large: bool) -> list[tuple[str, nn.Module]]:
        return [
            ("average", nn.AdaptiveAvgPool2d(6) if large else nn.Identity()),
            ("flatten", nn.Flatten()),
            ("hidden6", nn.Linear(inner, self.hidden)),
            ("norm6", norm_layer(self.norm, self.hidden, dims=0)),
            ("relu6", nn.ReLU()),
            ("hidden7", nn.Linear(self.hidden, self.hidden)),
            ("norm7", norm_layer(self.norm, self.hidden, dims=0)),
            ("relu7", nn.ReLU()),
            ("classifier", nn.Linear(self.hidden, classes)),
        ]


def _convolution(number: int, inputs: int, outputs: int, large: bool) -> nn.Conv2d:
    if number == 1 and large:
        return nn.Conv2d(inputs, outputs, 11, stride=4, padding=2)
    size = 5 if number <= 2 else 3
    return nn.Conv2d(inputs, outputs, size, padding=size // 2)
