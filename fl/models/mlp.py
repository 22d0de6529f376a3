"""Multi-layer perceptrons.

The 2NN of McMahan et al. AISTATS 2017. arXiv:1602.05629 has two hidden layers of 200.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from fl.fields import Count


@dataclass(frozen=True)
class MLP:
    """hidden: widths of the hidden layers, each followed by ReLU."""

    hidden: tuple[Count, ...] = (200, 200)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Logits for flattened inputs of ``shape``."""
        widths = (math.prod(shape), *self.hidden)
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], classes))
