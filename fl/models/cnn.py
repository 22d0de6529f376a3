"""A small convolutional network with batch normalisation, for small images.

No paper describes it: two blocks of 3x3 convolution, batch normalisation, ReLU and pooling.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fl.api import Count
from fl.blocks.projection_head import classifier_layers


@dataclass(frozen=True)
class CNN:
    """A small convolutional network.

    Attributes:
        channels: channels of the convolutions, one of each block, which halves height and width.
        projection: width of a projection head before the classifier, as MOON has it, or nothing.
    """

    channels: tuple[Count, ...] = (16, 32)
    projection: Count | None = None

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model of images (channels, height, width) that returns logits."""
        depth, height, width = shape
        blocks: list[nn.Module] = []
        for outputs in self.channels:
            blocks += [
                nn.Conv2d(depth, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
            depth, height, width = outputs, height // 2, width // 2
        head = classifier_layers(depth * height * width, classes, self.projection)
        return nn.Sequential(*blocks, nn.Flatten(), *head)
