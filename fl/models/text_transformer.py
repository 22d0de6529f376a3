"""A small transformer over the words or characters of a text.

Vaswani, Shazeer, Parmar, Uszkoreit, Jones, Gomez, Kaiser, Polosukhin. Attention Is All You Need.
NeurIPS 2017. arXiv:1706.03762 (its encoder).

Tokens become vectors, to which a learned vector of the position is added (instead of the paper's
sines; its table 3 has both). The mean over positions after the last layer is classified. Padding of
a short text counts as a token, as in `text-cnn`; `lstm` stops before it. Unlike in the paper,
dropout also acts on the output of a layer's first linear map.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fl.api import Count, Share
from fl.blocks.transformer import transformer_encoder


@dataclass(frozen=True)
class TextTransformer:
    """A small transformer over a text.

    Attributes:
        tokens: number of words or characters, numbered from 0; a plan takes it from the data set.
        width: width of their vectors.
        heads: number of attention heads; it must divide the width.
        hidden: width of a layer's small network.
        layers: number of layers.
        dropout: dropout of the outputs of linear layers, and of the first vectors.
    """

    tokens: Count = 10_001
    width: Count = 128
    heads: Count = 4
    hidden: Count = 256
    layers: Count = 2
    dropout: Share = 0.1

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model of tokens (length,), or (texts, length) read one after the other."""
        return _TextTransformer(self, math.prod(shape), classes)


class _TextTransformer(nn.Module):
    def __init__(self, choices: TextTransformer, length: int, classes: int) -> None:
        super().__init__()
        width = choices.width
        self.embedding = nn.Embedding(choices.tokens, width)
        self.positions = nn.Parameter(nn.init.normal_(torch.empty(1, length, width), std=0.02))
        self.dropout = nn.Dropout(choices.dropout)
        self.layers = transformer_encoder(
            choices.layers, width, choices.heads, choices.hidden, choices.dropout
        )
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        vectors = self.layers(self.dropout(self.embedding(x.flatten(1)) + self.positions))
        logits: Tensor = self.classifier(vectors.mean(dim=1))
        return logits
