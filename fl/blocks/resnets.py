"""Residual networks of torchvision, adapted to the images and classes of a data set.

He, Zhang, Ren, Sun. Deep Residual Learning for Image Recognition. CVPR 2016. arXiv:1512.03385.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from torch import nn

from fl.api import Count
from fl.blocks.norm_layers import Norm, norm_layer
from fl.blocks.projection_head import classifier_layers

Stem = Literal["cifar", "imagenet"]

BLOCKS = ("maxpool", "layer1", "layer2", "layer3", "layer4")
"""The stem and the four stages."""


@dataclass(frozen=True)
class ResNet:
    """A residual network of torchvision.

    Attributes:
        stem: `cifar` for images of about 32 pixels, `imagenet` for those of about 224.
        weights: `imagenet` for torchvision's from the user's cache, a file of such, or nothing.
        projection: width of a projection head before the classifier, as MOON has it (there 256), or
            nothing.
        norm: the kind of normalisation.
    """

    stem: Stem = "cifar"
    weights: str | None = None
    projection: Count | None = None
    norm: Norm = "batch"

    depth: ClassVar[int]
    arithmetic: ClassVar[str] = "native"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model of images (channels, height, width) that returns logits.

        Raises:
            ValueError: For stored weights with another normalisation than theirs.
        """
        from fl.pytorch.vision import load_pretrained, torchvision

        if self.weights is not None and self.norm != "batch":
            raise ValueError(f"norm is {self.norm}, but the weights have batch normalisation")
        constructor = getattr(torchvision.models, f"resnet{self.depth}")
        network: Any = constructor(norm_layer=partial(norm_layer, self.norm))
        if self.weights is not None:
            published = torchvision.models.get_model_weights(constructor).DEFAULT
            load_pretrained(network, self.weights, published)
        head = classifier_layers(network.fc.in_features, classes, self.projection)
        network.fc = nn.Sequential(*head) if self.projection else head[0]
        if self.stem == "cifar":
            network.conv1 = _convolution(shape[0], 3, stride=1)
            network.maxpool = nn.Identity()
        elif shape[0] != 3:
            network.conv1 = _convolution(shape[0], 7, stride=2)
        network.blocks = BLOCKS
        module: nn.Module = network
        return module


def _convolution(depth: int, kernel: int, stride: int) -> nn.Conv2d:
    """Return a first convolution to 64 channels, initialised like torchvision's."""
    layer = nn.Conv2d(depth, 64, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
