"""A small vision transformer: an image as a sequence of patches, read by self-attention.

Dosovitskiy, Beyer, Kolesnikov, Weissenborn, Zhai, Unterthiner, Dehghani, Minderer, Heigold, Gelly,
Uszkoreit, Houlsby. An Image Is Worth 16x16 Words: Transformers for Image Recognition at Scale. ICLR
2021. arXiv:2010.11929.

As in the paper: a class token, learned positions, normalisation before each half of a layer, GELU.
It is much smaller than the paper's, for images of 28 to 64 pixels; from 64 on, patches of 8 save
time. The layer before the classifier, for taps, is `norm`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fl.api import Count, Positive, Share
from fl.blocks.transformer import transformer_encoder


@dataclass(frozen=True)
class ViT:
    """A small vision transformer.

    Attributes:
        patch: height and width of a patch in pixels.
        dim: width of a token.
        depth: number of layers.
        heads: number of attention heads; it must divide dim.
        mlp_ratio: width of a layer's hidden part over dim.
        dropout: dropout of the outputs of linear layers, and of the first tokens.
    """

    patch: Count = 4
    dim: Count = 128
    depth: Count = 4
    heads: Count = 4
    mlp_ratio: Positive = 2.0
    dropout: Share = 0.0

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model of images (channels, height, width) with sides of whole patches."""
        _, height, width = shape
        if height % self.patch or width % self.patch:
            raise ValueError(f"height and width must be multiples of the patch, {self.patch}")
        return _ViT(self, shape, classes)


class _ViT(nn.Module):
    def __init__(self, choices: ViT, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        (channels, height, width), dim = shape, choices.dim
        patches = (height // choices.patch) * (width // choices.patch)
        self.patches = nn.Conv2d(channels, dim, choices.patch, choices.patch)
        self.token = nn.Parameter(nn.init.normal_(torch.empty(1, 1, dim), std=0.02))
        self.positions = nn.Parameter(nn.init.normal_(torch.empty(1, 1 + patches, dim), std=0.02))
        self.dropout = nn.Dropout(choices.dropout)
        hidden = round(dim * choices.mlp_ratio)
        self.layers = transformer_encoder(
            choices.depth, dim, choices.heads, hidden, choices.dropout, pre_norm=True
        )
        self.norm = nn.LayerNorm(dim)
        self.classifier = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], dim=1) + self.positions
        tokens = self.layers(self.dropout(tokens))
        logits: Tensor = self.classifier(self.norm(tokens[:, 0]))
        return logits
