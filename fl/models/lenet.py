"""A convolutional network of five layers for small colour images, with 84 features.

LeCun, Bottou, Bengio, Haffner. Gradient-Based Learning Applied to Document Recognition. Proc. IEEE
86 (1998), 2278–2324.

Yan et al. (FedSaC, ICML 2024) train it on CIFAR: two convolutional layers, two fully connected
ones, and a classifier on 84 features. Details that they leave open are those of LeNet-5 (5x5
kernels without padding, 6 and 16 channels, 120 units) but with ReLU and max-pooling, as is usual
since.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fl.api import Count
from fl.blocks.projection_head import classifier_layers

SMALLEST = 16
"""The smallest height and width of which two convolutions and two poolings leave a pixel."""


@dataclass(frozen=True)
class LeNet:
    """LeNet with ReLU: 6 and 16 channels of 5x5, each pooled by 2, then 120, 84, classes.

    Attributes:
        enlarge: factor by which images are first enlarged, bilinearly: 2 for 8 x 8 pixels.
        projection: width of a projection head before the classifier, as MOON has it (there 256), or
            nothing.
    """

    enlarge: Count = 1
    projection: Count | None = None

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model of images (channels, height, width), at least 16 pixels wide and high."""
        depth, height, width = shape
        sides = height * self.enlarge, width * self.enlarge
        if min(sides) < SMALLEST:
            raise ValueError(f"images must be at least {SMALLEST} x {SMALLEST} after `enlarge`")
        rows, columns = (((size - 4) // 2 - 4) // 2 for size in sides)
        enlargement = [nn.Upsample(scale_factor=self.enlarge, mode="bilinear")]
        return nn.Sequential(
            *(enlargement if self.enlarge > 1 else []),
            nn.Conv2d(depth, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * rows * columns, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            *classifier_layers(84, classes, self.projection),
        )
