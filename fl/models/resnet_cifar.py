"""A small residual network of 6 n + 2 layers for small images, with batch normalisation.

He, Zhang, Ren, Sun. Deep Residual Learning for Image Recognition. CVPR 2016. arXiv:1512.03385.

It is the network of the paper's section 4.2 for CIFAR-10: three stages of n blocks; the last two
halve height and width and double the channels. If shapes change, the shortcut is a 1x1 convolution
with normalisation, as in the paper's larger networks, not padding with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from fl.api import Count


@dataclass(frozen=True)
class ResNetCifar:
    """A small residual network.

    Attributes:
        blocks: n, the number of blocks of each stage.
        width: channels of the first stage.
    """

    blocks: Count = 1
    width: Count = 16

    arithmetic: ClassVar[str] = "native"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model of images (channels, height, width) with 4 width features."""
        depth, _, _ = shape
        layers: list[nn.Module] = [
            nn.Conv2d(depth, self.width, 3, padding=1, bias=False),
            nn.BatchNorm2d(self.width),
            nn.ReLU(),
        ]
        inputs = self.width
        for stage, outputs in enumerate((self.width, 2 * self.width, 4 * self.width)):
            for block in range(self.blocks):
                layers.append(Block(inputs, outputs, 2 if stage and not block else 1))
                inputs = outputs
        end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]
        return nn.Sequential(*layers, *end)


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut; ``stride`` is that of the first."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map [b, inputs, h, w] to [b, outputs, h / stride, w / stride]."""
        inner = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(inner)) + self.shortcut(x))
