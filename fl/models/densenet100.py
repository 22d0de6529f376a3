"""DenseNet-BC of 100 layers and growth rate 12, torchvision's layers, for small or large images.

Huang, Liu, van der Maaten, Weinberger. Densely Connected Convolutional Networks. CVPR 2017.
arXiv:1608.06993.

Its blocks are the stem, `features.pool0`; the three dense blocks; and the last normalisation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import nn


@dataclass(frozen=True)
class DenseNet100:
    """DenseNet-BC of 100 layers.

    Attributes:
        stem: `cifar`, the paper's 3x3 convolution, for images of about 32 pixels; `imagenet`, the
            paper's 7x7 one of stride 2 with pooling, for those of about 224.
    """

    stem: Literal["cifar", "imagenet"] = "cifar"

    arithmetic: ClassVar[str] = "native"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model of images (channels, height, width) with 342 features."""
        from fl.pytorch.vision import torchvision

        network: Any = torchvision.models.DenseNet(12, (16, 16, 16), 24, num_classes=classes)
        if self.stem == "cifar":
            network.features.conv0 = _convolution(shape[0], 3, stride=1)
            for name in ("norm0", "relu0", "pool0"):
                setattr(network.features, name, nn.Identity())
        elif shape[0] != 3:
            network.features.conv0 = _convolution(shape[0], 7, stride=2)
        layers = ("pool0", "denseblock1", "denseblock2", "denseblock3", "norm5")
        network.blocks = tuple(f"features.{name}" for name in layers)
        module: nn.Module = network
        return module


def _convolution(depth: int, kernel: int, stride: int) -> nn.Conv2d:
    """Return a first convolution to 24 channels, initialised like torchvision's."""
    layer = nn.Conv2d(depth, 24, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight)
    return layer
