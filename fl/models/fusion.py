"""An encoder for each of several inputs, and a classifier of the mean of their features.

Fusion of the modalities after layers for each, and before the decision: T. Baltrusaitis, C. Ahuja
and L.-P. Morency. Multimodal Machine Learning: A Survey and Taxonomy. IEEE TPAMI 41 (2019), 423-443
(joint representations, model-based fusion).

The encoder depends on the shape of its input: a vector goes through a hidden layer; a series
(channels, length) through convolutions in time; an image (channels, height, width) through
convolutions of 3 x 3 pixels. After each convolution come ReLU and pooling by 2, after the last the
mean over time, or over the image. A linear layer and ReLU make ``features`` numbers of that.
Clients hold all inputs, or one of them, as the partition says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from fl.api import Count
from fl.blocks.multimodal import MultimodalModel
from fl.data.dataset import ANY_MODALITIES


@dataclass(frozen=True)
class Fusion:
    """Encoders of several inputs, and a classifier.

    Attributes:
        features: number of features of each input.
        channels: channels of the convolutions of each encoder.
        kernel: width of convolutions over series, an odd number.
        hidden: units between a vector and its features.
        classifier: one for all inputs, `shared`; or, if clients hold one input each, its `own`.
    """

    features: Count = 64
    channels: tuple[Count, ...] = (32, 64)
    kernel: Count = 5
    hidden: Count = 128
    classifier: Literal["shared", "own"] = "shared"

    modalities: ClassVar[str] = ANY_MODALITIES

    def build(self, shapes: Mapping[str, tuple[int, ...]], classes: int) -> MultimodalModel:
        """Build a model of vectors, series (channels, length), images (channels, height, width)."""
        extractors = {name: self._encoder(shape) for name, shape in shapes.items()}
        return MultimodalModel(extractors, self.features, classes, self.classifier == "shared")

    def _encoder(self, shape: tuple[int, ...]) -> nn.Module:
        if len(shape) == 1:
            layers, width = [nn.Linear(shape[0], self.hidden), nn.ReLU()], self.hidden
        elif len(shape) in (2, 3):
            layers, width = self._convolutions(*shape), self.channels[-1]
        else:
            raise ValueError(f"no encoder exists for an input of shape {shape}")
        return nn.Sequential(*layers, nn.Linear(width, self.features), nn.ReLU())

    def _convolutions(self, depth: int, *sides: int) -> list[nn.Module]:
        if min(sides) < 2 ** len(self.channels):
            raise ValueError(f"series and images must be at least {2 ** len(self.channels)} long")
        if not self.kernel % 2:
            raise ValueError(f"kernel must be odd, but is {self.kernel}")
        layers: list[nn.Module] = []
        for outputs in self.channels:
            if len(sides) == 1:
                layers.append(nn.Conv1d(depth, outputs, self.kernel, padding=self.kernel // 2))
            else:
                layers.append(nn.Conv2d(depth, outputs, 3, padding=1))
            layers += [nn.ReLU(), nn.MaxPool1d(2) if len(sides) == 1 else nn.MaxPool2d(2)]
            depth = outputs
        pool = nn.AdaptiveAvgPool1d(1) if len(sides) == 1 else nn.AdaptiveAvgPool2d(1)
        return [*layers, pool, nn.Flatten()]
