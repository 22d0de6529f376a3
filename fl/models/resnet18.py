"""ResNet-18, torchvision's, with its own stem or one for small images.

He, Zhang, Ren, Sun. Deep Residual Learning for Image Recognition. CVPR 2016. arXiv:1512.03385.

The stem for small images is that of Lee et al. (FedL2P, NeurIPS 2023, appendix D): a 3x3
convolution of stride 1 in place of the 7x7 one of stride 2, and no max-pooling.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fl.api import Count
from fl.parts.normalisation import Norm
from fl.parts.resnets import Stem, resnet


@dataclass(frozen=True)
class ResNet18:
    """stem: `cifar` for images of about 32 pixels, `imagenet` for those of about 224.
    weights: `imagenet` for torchvision's from the user's cache, a file of such, or nothing.
    projection: width of a projection head before the classifier, as MOON has it (there 256), or
        nothing.
    norm: what normalises.
    """

    stem: Stem = "cifar"
    weights: str | None = None
    projection: Count | None = None
    norm: Norm = "batch"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Logits for images of shape (channels, height, width), from 512 features."""
        from fl.pytorch.vision import torchvision

        make, published = torchvision.models.resnet18, torchvision.models.ResNet18_Weights.DEFAULT
        return resnet(make, published, self, shape, classes)
