"""EfficientNet-B0, torchvision's, with random weights or weights trained on ImageNet.

Tan, Le. EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks. ICML 2019.
arXiv:1905.11946.

The last linear layer has as many outputs as the data set has classes; the layer before it, for
taps, is `avgpool`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn


@dataclass(frozen=True)
class EfficientNetB0:
    """EfficientNet-B0.

    Attributes:
        weights: `imagenet` for torchvision's from the user's cache, a file of such, or nothing.
    """

    weights: str | None = None

    arithmetic: ClassVar[str] = "native"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model of images (3, height, width) that returns logits, from 1,280 features."""
        from fl.pytorch.vision import load_pretrained, torchvision

        network: nn.Module = torchvision.models.efficientnet_b0()
        if self.weights is not None:
            load_pretrained(
                network, self.weights, torchvision.models.EfficientNet_B0_Weights.DEFAULT
            )
        network.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))
        return network
