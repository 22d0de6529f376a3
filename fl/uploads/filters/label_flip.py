"""Attackers that train on wrong labels.

Fang, Cao, Jia, Gong. Local Model Poisoning Attacks to Byzantine-Robust Federated Learning. USENIX
Security 2020. arXiv:1911.11815.

Class y becomes classes - 1 - y, in training only. An attacker's own model (in Ditto) is trained on
wrong labels too, and scored on right ones, like all clients' models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fl.api import Batch, BuildContext, Share, UploadFilter


@dataclass(frozen=True)
class LabelFlip:
    """Wrong labels in the training of attackers.

    Attributes:
        share: the share of clients that attack, drawn by seed.
    """

    share: Share

    attacks: ClassVar = True

    def build(self, context: BuildContext) -> UploadFilter | None:
        """Return a filter that changes nothing but attackers' batches."""
        if self.share == 0:
            return None

        def flip(batch: Batch) -> Batch:
            return {**batch, "y": context.classes - 1 - batch["y"]}

        return UploadFilter("label-flip", attacker_share=self.share, change_batch=flip)
