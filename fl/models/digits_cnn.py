"""Convolutional network of FedBN for DIGITS, normalised after every layer but the last.

Li, Jiang, Zhang, Kamp, Dou. FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization. ICLR 2021. arXiv:2102.07623 (appendix).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from torch import nn

from fl.blocks.norm_layers import Norm, norm_layer

CHANNELS, HIDDEN = (64, 64, 128), (2048, 512)


@dataclass(frozen=True)
class DigitsCNN:
    """The network of FedBN, with the blocks `pool1`, `pool2`, `relu3`.

    Attributes:
        norm: normalisation of the layers.
    """

    norm: Norm = "batch"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model of images (channels, height, width), at least 4 pixels wide and high."""
        inputs, height, width = shape
        layers: list[tuple[str, nn.Module]] = []
        for number, outputs in enumerate(CHANNELS, 1):
            layers += [
                (f"convolution{number}", nn.Conv2d(inputs, outputs, 5, padding=2)),
                (f"norm{number}", norm_layer(self.norm, outputs)),
                (f"relu{number}", nn.ReLU()),
            ]
            if number < len(CHANNELS):
                layers.append((f"pool{number}", nn.MaxPool2d(2)))
            inputs = outputs
        layers.append(("flatten", nn.Flatten()))
        inputs *= (height // 4) * (width // 4)
        for number, outputs in enumerate(HIDDEN, len(CHANNELS) + 1):
            layers += [
                (f"hidden{number}", nn.Linear(inputs, outputs)),
                (f"norm{number}", norm_layer(self.norm, outputs, dims=0)),
                (f"relu{number}", nn.ReLU()),
            ]
            inputs = outputs
        network: Any = nn.Sequential(
            OrderedDict([*layers, ("classifier", nn.Linear(inputs, classes))])
        )
        network.blocks = ("pool1", "pool2", "relu3")
        module: nn.Module = network
        return module
