"""EfficientNet-B0, torchvision's, from scratch or from weights trained on ImageNet.

Tan, Le. EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks. ICML 2019.
arXiv:1905.11946.

The last linear layer is made for the classes at hand; the layer before it, to tap, is `avgpool`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class EfficientNetB0:
    """weights: `imagenet` for torchvision's from the user's cache, a file of such, or nothing."""

    weights: str | None = None

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Logits for images of shape (3, height, width), from 1,280 features."""
        from fl.pytorch.vision import pretrained, torchvision

        network: nn.Module = torchvision.models.efficientnet_b0()
        if self.weights is not None:
            pretrained(network, self.weights, torchvision.models.EfficientNet_B0_Weights.DEFAULT)
        network.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))
        return network
