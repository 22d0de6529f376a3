"""ResNet-18, torchvision's, with its own stem or one for small images.

He, Zhang, Ren, Sun. Deep Residual Learning for Image Recognition. CVPR 2016. arXiv:1512.03385.

The stem for small images is that of Lee et al. (FedL2P, NeurIPS 2023, appendix D): a 3x3
convolution of stride 1 in place of the 7x7 one of stride 2, and no max-pooling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from fl.fields import Count
from fl.parts.projection import classifier


@dataclass(frozen=True)
class ResNet18:
    """stem: `cifar` for images of about 32 pixels, `imagenet` for those of about 224.

    weights: `imagenet` for torchvision's from the user's cache, a file of such, or nothing.
    projection: width of a projection head before the classifier, as MOON has it (there 256), or
    nothing.
    """

    stem: Literal["cifar", "imagenet"] = "cifar"
    weights: str | None = None
    projection: Count | None = None

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Logits for images of shape (channels, height, width), from 512 features."""
        from fl.pytorch.vision import pretrained, torchvision

        depth, _, _ = shape
        network: nn.Module = torchvision.models.resnet18()
        if self.weights is not None:
            pretrained(network, self.weights, torchvision.models.ResNet18_Weights.DEFAULT)
        head = classifier(512, classes, self.projection)
        network.fc = nn.Sequential(*head) if self.projection else head[0]
        if self.stem == "cifar":
            network.conv1 = _convolution(depth, 3, stride=1)
            network.maxpool = nn.Identity()
        elif depth != 3:
            network.conv1 = _convolution(depth, 7, stride=2)
        return network


def _convolution(depth: int, kernel: int, stride: int) -> nn.Conv2d:
    """A first convolution to 64 channels, initialised as torchvision does."""
    layer = nn.Conv2d(depth, 64, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
