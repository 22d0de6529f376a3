"""Multinomial logistic regression: one linear layer, a convex objective.

The model on Synthetic, MNIST and FEMNIST of: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated
Optimization in Heterogeneous Networks. MLSys 2020. arXiv:1812.06127.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Logistic:
    """Multinomial logistic regression.

    Attributes:
        zero: whether weights begin at zero, so that every seed begins with the same weights.
    """

    zero: bool = False

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model that returns logits for flattened inputs of ``shape``."""
        linear = nn.Linear(math.prod(shape), classes)
        if self.zero:
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)
        return nn.Sequential(nn.Flatten(), linear)
