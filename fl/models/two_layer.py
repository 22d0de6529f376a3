"""The two-layer model of the Synthetic task: two linear maps with nothing between them.

Ayromlou, Emerson. Adaptive Latent-Space Constraints in Personalized FL. 2025 (section 5: 60-20-10,
the first layer is the feature extractor).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from torch import nn

from fl.api import Count


@dataclass(frozen=True)
class TwoLayer:
    """Two linear layers.

    Attributes:
        hidden: number of features.
        head: input of the loss: `probabilities` puts a softmax at the end, after which
            cross-entropy applies its own, as the paper's code does; `logits` leaves it out.
    """

    hidden: Count = 20
    head: Literal["probabilities", "logits"] = "probabilities"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build two linear layers on flattened inputs, and a softmax for probabilities."""
        layers: dict[str, nn.Module] = {
            "flatten": nn.Flatten(),
            "features": nn.Linear(math.prod(shape), self.hidden),
            "classifier": nn.Linear(self.hidden, classes),
        }
        if self.head == "probabilities":
            layers["softmax"] = nn.Softmax(dim=-1)
        return nn.Sequential(OrderedDict(layers))
