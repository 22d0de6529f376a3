"""MobileNetV3-Small, torchvision's, with its own stem or one for small images.

Howard, Sandler, Chu, Chen, Chen, Tan, Wang, Zhu, Pang, Vasudevan, Le, Adam. Searching for
MobileNetV3. ICCV 2019. arXiv:1905.02244.

The stem for small images is a 3x3 convolution of stride 1 in place of the one of stride 2, as in
`resnet18`; the layers after it still bring an image of 32x32 down to 2x2. The layer before the
classifier, to tap, is `avgpool`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn


@dataclass(frozen=True)
class MobileNetV3:
    """stem: `cifar` for images of about 32 pixels, `imagenet` for those of about 224.
    weights: `imagenet` for torchvision's from the user's cache, a file of such, or nothing.
    """

    stem: Literal["cifar", "imagenet"] = "cifar"
    weights: str | None = None

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Logits for images of shape (channels, height, width), from 1,024 features."""
        from fl.pytorch.vision import pretrained, torchvision

        depth, _, _ = shape
        network: Any = torchvision.models.mobilenet_v3_small()
        if self.weights is not None:
            published = torchvision.models.MobileNet_V3_Small_Weights.DEFAULT
            pretrained(network, self.weights, published)
        network.classifier[3] = nn.Linear(1024, classes)
        if self.stem == "cifar" or depth != 3:
            network.features[0][0] = _convolution(depth, stride=1 if self.stem == "cifar" else 2)
        module: nn.Module = network
        return module


def _convolution(depth: int, stride: int) -> nn.Conv2d:
    """A first convolution to 16 channels, initialised as torchvision does."""
    layer = nn.Conv2d(depth, 16, 3, stride, padding=1, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out")
    return layer
