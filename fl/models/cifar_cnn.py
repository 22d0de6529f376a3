"""Convolutional network of pFL-Bench for CIFAR-10, with a linear layer of 2,048 features.

Ayromlou, Emerson. Adaptive Latent-Space Constraints in Personalized FL. 2025 (section 5); after: D.
Chen et al. pFL-Bench: A Comprehensive Benchmark for Personalized Federated Learning. NeurIPS 2022.

Layers for constraints of depth 1, 2 and 3: `features`; `features` and `block2`; these and `block1`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from fl.api import Count


@dataclass(frozen=True)
class CifarCNN:
    """The convolutional network of pFL-Bench.

    Attributes:
        hidden: number of features, the classifier's inputs.
    """

    hidden: Count = 2048

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model of images (channels, height, width) that returns logits."""
        depth, height, width = shape
        inner = 64 * (height // 4) * (width // 4)
        return nn.Sequential(
            OrderedDict(
                convolution1=nn.Conv2d(depth, 32, 5, padding=2),
                norm1=nn.BatchNorm2d(32),
                block1=nn.ReLU(),
                pool1=nn.MaxPool2d(2),
                convolution2=nn.Conv2d(32, 64, 5, padding=2),
                norm2=nn.BatchNorm2d(64),
                block2=nn.ReLU(),
                pool2=nn.MaxPool2d(2),
                flatten=nn.Flatten(),
                hidden=nn.Linear(inner, self.hidden),
                features=nn.ReLU(),
                classifier=nn.Linear(self.hidden, classes),
            )
        )
