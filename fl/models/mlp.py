"""Multi-layer perceptrons.

With two hidden layers of 200 it is the 2NN of: McMahan, Moore, Ramage, Hampson, Agüera y Arcas.
Communication-Efficient Learning of Deep Networks from Decentralized Data. AISTATS 2017.
arXiv:1602.05629.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from fl.api import Count
from fl.blocks.norm_layers import Norm, norm_layer


@dataclass(frozen=True)
class MLP:
    """A multi-layer perceptron.

    Attributes:
        hidden: widths of the hidden layers, each followed by ReLU.
        norm: normalisation before ReLU, or nothing.
    """

    hidden: tuple[Count, ...] = (200, 200)
    norm: Norm | None = None

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model that returns logits for flattened inputs of ``shape``."""
        widths = (math.prod(shape), *self.hidden)
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise(widths):
            layers.append(nn.Linear(inputs, outputs))
            layers += [norm_layer(self.norm, outputs, dims=0)] if self.norm else []
            layers.append(nn.ReLU())
        return nn.Sequential(*layers, nn.Linear(widths[-1], classes))
