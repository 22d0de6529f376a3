"""U-Net with normalisation, which gives a class to each pixel of an image.

O. Ronneberger, P. Fischer and T. Brox. U-Net: Convolutional Networks for Biomedical Image
Segmentation. MICCAI 2015. arXiv:1505.04597.

As in the released code of HarmoFL and FedFA, convolutions are padded, so that an image keeps its
size, have no bias and are followed by normalisation (by batch, unless the key says otherwise); the
first level has 32 channels instead of 64. Its blocks are those after which FedFA has its layers:
``pool1`` to ``pool4`` and ``bottleneck``. There is no classifier that could stay local: the last
layer is a convolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fl.api import Count
from fl.blocks.norm_layers import Norm, norm_layer


@dataclass(frozen=True)
class UNet:
    """U-Net.

    Attributes:
        width: channels of the first level, doubled at each one below.
        levels: number of times that height and width are halved; both must be divisible that often.
        norm: normalisation after each convolution but the last.
    """

    width: Count = 32
    levels: Count = 4
    norm: Norm = "batch"

    tasks: ClassVar[tuple[str, ...]] = ("segmentation",)
    arithmetic: ClassVar[str] = "native"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model from images (channels, height, width) to (classes, height, width)."""
        channels, height, width = shape
        side = 2**self.levels
        if height % side or width % side:
            raise ValueError(f"height and width must be divisible by {side}")
        return _UNet(self, channels, classes)


class _UNet(nn.Module):
    def __init__(self, choices: UNet, channels: int, classes: int) -> None:
        super().__init__()
        norm = choices.norm
        widths = [choices.width * 2**level for level in range(choices.levels + 1)]
        self.levels = range(1, choices.levels + 1)
        for level, inputs in zip(self.levels, [channels, *widths[:-2]], strict=True):
            self.add_module(f"encoder{level}", _block(inputs, widths[level - 1], norm))
            self.add_module(f"pool{level}", nn.MaxPool2d(2))
        self.bottleneck = _block(widths[-2], widths[-1], norm)
        self.blocks = (*(f"pool{level}" for level in self.levels), "bottleneck")
        for level in reversed(self.levels):
            upper, lower = widths[level - 1], widths[level]
            self.add_module(f"up{level}", nn.ConvTranspose2d(lower, upper, 2, stride=2))
            self.add_module(f"decoder{level}", _block(2 * upper, upper, norm))
        self.classifier = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped = {}
        for level in self.levels:
            skipped[level] = self.get_submodule(f"encoder{level}")(x)
            x = self.get_submodule(f"pool{level}")(skipped[level])
        x = self.bottleneck(x)
        for level in reversed(self.levels):
            x = torch.cat([self.get_submodule(f"up{level}")(x), skipped[level]], dim=1)
            x = self.get_submodule(f"decoder{level}")(x)
        logits: Tensor = self.classifier(x)
        return logits


def _block(inputs: int, outputs: int, norm: Norm) -> nn.Sequential:
    """Return two convolutions, each with normalisation and ReLU."""
    layers: list[nn.Module] = []
    for width in (inputs, outputs):
        layers += [
            nn.Conv2d(width, outputs, 3, padding=1, bias=False),
            norm_layer(norm, outputs),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)
