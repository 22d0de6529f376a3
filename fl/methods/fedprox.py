"""FedProx: FedAvg whose clients are held near the shared model by a proximal term.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys
2020. arXiv:1812.06127.

Differences from the paper: every client does its whole local work (gamma-inexactness by early stops
is not simulated), and clients are weighted by their samples instead of drawn in proportion to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fl.fields import NonNegative
from fl.method import Method, Setting
from fl.parts.losses import task_loss
from fl.parts.proximal import proximal
from fl.recipe import recipe
from fl.schema import GLOBAL
from fl.task import ANY


@dataclass(frozen=True)
class FedProx:
    """mu: weight of the proximal term (mu/2) ||w - w^t||^2, equation 2; 0 is FedAvg."""

    mu: NonNegative = 0.01

    stages: ClassVar = (GLOBAL,)
    tasks: ClassVar = ANY
    modalities: ClassVar = True

    def build(self, setting: Setting) -> Method:
        """FedAvg with one more loss term."""
        return recipe(setting, terms=(task_loss, proximal(self.mu)))
