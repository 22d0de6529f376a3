"""Swin-T, torchvision's hierarchical transformer, for inputs of about 224 or 32 pixels.

Liu, Lin, Cao, Hu, Wei, Zhang, Lin, Guo. Swin Transformer: Hierarchical Vision Transformer Using
Shifted Windows. ICCV 2021. arXiv:2103.14030.

Its blocks are `block1`, the embedded patches, and `block2` to `block5`, the four stages, as images
[b, channels, height, width].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from fl.api import Share

DEPTHS, HEADS, WIDTH = [2, 2, 6, 2], [3, 6, 12, 24], 96

BLOCK_AFTER_LAYER = {0: "block1", 1: "block2", 3: "block3", 5: "block4", 7: "block5"}
"""The block after a layer, by its index in torchvision's sequence.

Between stages patches are merged.
"""


@dataclass(frozen=True)
class SwinT:
    """Swin-T.

    Attributes:
        stem: `imagenet`, patches of 4x4 and windows of 7x7, for about 224 pixels; `cifar`, patches
            of 2x2 and windows of 4x4, for about 32.
        weights: as in `resnet18`, for the stem `imagenet`.
        stochastic_depth: probability that a layer of the last stage is left out for a sample; it
            grows evenly from 0.
    """

    stem: Literal["imagenet", "cifar"] = "imagenet"
    weights: str | None = None
    stochastic_depth: Share = 0.2

    arithmetic: ClassVar[str] = "native"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model of images (channels, height, width) with 768 features."""
        from fl.pytorch.vision import load_pretrained, torchvision

        patch, window = ([4, 4], [7, 7]) if self.stem == "imagenet" else ([2, 2], [4, 4])
        if self.weights is not None and self.stem != "imagenet":
            raise ValueError("stem is cifar, but the weights have patches of 4x4")
        network: Any = torchvision.models.SwinTransformer(
            patch, WIDTH, DEPTHS, HEADS, window, stochastic_depth_prob=self.stochastic_depth
        )
        if self.weights is not None:
            load_pretrained(network, self.weights, torchvision.models.Swin_T_Weights.DEFAULT)
        if shape[0] != 3:
            network.features[0][0] = nn.Conv2d(shape[0], WIDTH, patch[0], patch[0])
        return _Swin(network, classes)


class _Swin(nn.Module):
    """Torchvision's layers, with named layers between stages that see features as images."""

    blocks = tuple(BLOCK_AFTER_LAYER.values())

    def __init__(self, network: Any, classes: int) -> None:
        super().__init__()
        self.features, self.norm = network.features, network.norm
        for name in self.blocks:
            self.add_module(name, nn.Identity())
        self.head = nn.Linear(network.head.in_features, classes)

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.features):
            x = layer(x)
            if number in BLOCK_AFTER_LAYER:
                block = self.get_submodule(BLOCK_AFTER_LAYER[number])
                x = block(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        logits: Tensor = self.head(self.norm(x).mean((1, 2)))
        return logits
