"""A convolutional network over the words of a text.

Y. Kim. Convolutional Neural Networks for Sentence Classification. EMNLP 2014. arXiv:1408.5882.

Words become vectors, convolutions of several widths run over them, and each channel keeps its
largest value over the text (CNN-rand: the vectors are learned). The paper drops out half of the
features and bounds the norm of the classifier's rows; neither is done here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fl.api import Count


@dataclass(frozen=True)
class TextCNN:
    """A convolutional network over words.

    Attributes:
        tokens: number of words, numbered from 0; a plan takes it from the data set.
        width: width of their vectors.
        kernels: widths of the convolutions, in words.
        channels: channels of each of them.
    """

    tokens: Count = 10_001
    width: Count = 300
    kernels: tuple[Count, ...] = (3, 4, 5)
    channels: Count = 100

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model of tokens (length,), or (texts, length) read one after the other."""
        if shape[-1] < max(self.kernels):
            raise ValueError(f"texts must be at least {max(self.kernels)} words long")
        return _TextCNN(self, classes)


class _TextCNN(nn.Module):
    def __init__(self, choices: TextCNN, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(choices.tokens, choices.width)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(choices.width, choices.channels, kernel) for kernel in choices.kernels
        )
        self.classifier = nn.Linear(len(choices.kernels) * choices.channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        words = self.embedding(x.flatten(1)).transpose(1, 2)
        maxima = [torch.relu(layer(words)).amax(dim=2) for layer in self.convolutions]
        logits: Tensor = self.classifier(torch.cat(maxima, dim=1))
        return logits
