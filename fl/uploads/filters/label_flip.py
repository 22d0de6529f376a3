"""Attackers that train on wrong labels, and send what comes of it.

Fang, Cao, Jia, Gong. Local Model Poisoning Attacks to Byzantine-Robust Federated Learning. USENIX
Security 2020. arXiv:1911.11815.

Class y becomes classes - 1 - y, in training alone. What an attacker keeps of its own (Ditto's
model) is trained on wrong labels too, and scored on right ones, as all clients are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fl.api import Batch, BuildContext, Share, Stage


@dataclass(frozen=True)
class LabelFlip:
    """share: of the clients that attack, drawn by seed."""

    share: Share

    def build(self, context: BuildContext) -> Stage | None:
        """A stage that changes nothing but attackers' batches."""
        if self.share == 0:
            return None

        def batch(clean_batch: Batch) -> Mapping[str, Any]:
            return {**clean_batch, "y": context.classes - 1 - clean_batch["y"]}

        return Stage("label-flip", share=self.share, batch=batch)
