"""FedRep: a shared representation, and a head of each client's own that is trained first.

Collins, Hassani, Mokhtari, Shakkottai. Exploiting Shared Representations for Personalized Federated
Learning. ICML 2021. arXiv:2102.07078.

The body is trained for the run's local epochs or steps (the paper: one epoch).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fl.fields import Count
from fl.method import Method, Setting
from fl.recipe import Phase, recipe, within, without
from fl.schema import PERSONAL


@dataclass(frozen=True)
class FedRep:
    """head_epochs: epochs of the head, with the body fixed, before the body is trained."""

    head_epochs: Count = 10

    stages: ClassVar = (PERSONAL,)

    def build(self, setting: Setting) -> Method:
        """Two phases: the local head, then the shared body."""
        head = setting.network.head
        phases = (Phase(within(head), self.head_epochs), Phase(without(head)))
        return recipe(setting, local=within(head), phases=phases)
