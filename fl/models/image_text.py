"""Extractors of features of images and of texts, and a classifier, for clients with either.

K. Yan et al. Balancing Similarity and Complementarity for Federated Learning. ICML 2024 (appendix
B.3).

An image goes through four convolutions, a text through five of different widths side by side (Kim.
EMNLP 2014). Both give ``features`` numbers, the inputs of a linear classifier. The paper gives no
more details. Here each convolution over images is of 3 x 3 pixels, with batch normalisation, ReLU
and pooling by 2, and the output of the last one is averaged over the image. For a text, each
convolution gives its largest value over the text, and these go through a linear layer and ReLU. The
captions of a photograph are read one after the other.

All clients share one classifier, or each modality has its own, and then the modalities have nothing
in common. If clients hold both an image and its texts (a partition without `modalities`), the mean
of both features goes into the one classifier; the paper does not have this case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fl.api import Count
from fl.blocks.multimodal import MultimodalModel


@dataclass(frozen=True)
class ImageText:
    """Extractors of images and texts, and a classifier.

    Attributes:
        features: number of features, the classifier's inputs.
        classifier: one for all, `shared`, or each modality's `own`.
        channels: channels of the first three convolutions over images.
        tokens: number of words, numbered from 0; a plan takes it from the data set.
        width: width of their vectors.
        kernels: widths of the convolutions over texts, in words.
        filters: channels of each of them.
    """

    features: Count = 256
    classifier: Literal["shared", "own"] = "shared"
    channels: tuple[Count, ...] = (32, 64, 128)
    tokens: Count = 5_001
    width: Count = 128
    kernels: tuple[Count, ...] = (1, 2, 3, 4, 5)
    filters: Count = 100

    modalities: ClassVar[tuple[str, ...]] = ("image", "text")

    def build(self, shapes: Mapping[str, tuple[int, ...]], classes: int) -> MultimodalModel:
        """Build a model of images (channels, height, width) and tokens (texts, length)."""
        extractors = {"image": self._image(shapes["image"]), "text": self._text(shapes["text"])}
        return MultimodalModel(extractors, self.features, classes, self.classifier == "shared")

    def _image(self, shape: tuple[int, ...]) -> nn.Module:
        depth, *sides = shape
        if min(sides) < 2 ** len(self.channels):
            raise ValueError(f"images must be at least {2 ** len(self.channels)} pixels wide")
        layers: list[nn.Module] = []
        for outputs in self.channels:
            layers += [*_convolution(depth, outputs), nn.MaxPool2d(2)]
            depth = outputs
        layers += [*_convolution(depth, self.features), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        return nn.Sequential(*layers)

    def _text(self, shape: tuple[int, ...]) -> nn.Module:
        if torch.Size(shape).numel() < max(self.kernels):
            raise ValueError(f"texts must be at least {max(self.kernels)} words long")
        return _Text(self)


def _convolution(inputs: int, outputs: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    ]


class _Text(nn.Module):
    def __init__(self, choices: ImageText) -> None:
        super().__init__()
        self.embedding = nn.Embedding(choices.tokens, choices.width)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(choices.width, choices.filters, kernel) for kernel in choices.kernels
        )
        self.features = nn.Linear(len(choices.kernels) * choices.filters, choices.features)

    def forward(self, x: Tensor) -> Tensor:
        words = self.embedding(x.flatten(1)).transpose(1, 2)
        maxima = [torch.relu(layer(words)).amax(dim=2) for layer in self.convolutions]
        return torch.relu(self.features(torch.cat(maxima, dim=1)))
