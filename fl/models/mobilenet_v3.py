"""MobileNetV3-Small, torchvision's, with its own stem or one for small images.

Howard, Sandler, Chu, Chen, Chen, Tan, Wang, Zhu, Pang, Vasudevan, Le, Adam. Searching for
MobileNetV3. ICCV 2019. arXiv:1905.02244.

The stem for small images is a 3x3 convolution of stride 1 instead of stride 2, as in `resnet18`;
the layers after it still reduce an image of 32x32 to 2x2. The layer before the classifier, for
taps, is `avgpool`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import nn


@dataclass(frozen=True)
class MobileNetV3:
    """MobileNetV3-Small.

    Attributes:
        stem: `cifar` for images of about 32 pixels, `imagenet` for those of about 224.
        weights: `imagenet` for torchvision's from the user's cache, a file of such, or nothing.
    """

    stem: Literal["cifar", "imagenet"] = "cifar"
    weights: str | None = None

    arithmetic: ClassVar[str] = "native"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model of images (channels, height, width) with 1,024 features."""
        from fl.pytorch.vision import load_pretrained, torchvision

        depth, _, _ = shape
        network: Any = torchvision.models.mobilenet_v3_small()
        if self.weights is not None:
            published = torchvision.models.MobileNet_V3_Small_Weights.DEFAULT
            load_pretrained(network, self.weights, published)
        network.classifier[3] = nn.Linear(1024, classes)
        if self.stem == "cifar" or depth != 3:
            network.features[0][0] = _convolution(depth, stride=1 if self.stem == "cifar" else 2)
        module: nn.Module = network
        return module


def _convolution(depth: int, stride: int) -> nn.Conv2d:
    """Return a first convolution to 16 channels, initialised like torchvision's."""
    layer = nn.Conv2d(depth, 16, 3, stride, padding=1, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out")
    return layer
