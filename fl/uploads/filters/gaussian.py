"""Attackers that send Gaussian noise.

Blanchard, El Mhamdi, Guerraoui, Stainer. Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent. NeurIPS 2017. arXiv:1703.02757.

The paper's deviation is 200, for gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fl.api import ALL_TASKS, BuildContext, Positive, RoundUploads, Share, UploadFilter


@dataclass(frozen=True)
class Gaussian:
    """Noise in place of the uploads of attackers.

    Attributes:
        share: the share of clients that attack, drawn by seed.
        deviation: the standard deviation of every number that they send.
    """

    share: Share
    deviation: Positive = 1.0

    tasks: ClassVar = ALL_TASKS
    attacks: ClassVar = True

    def build(self, context: BuildContext) -> UploadFilter | None:
        """Return a filter that draws new uploads of attackers in every round."""
        if self.share == 0:
            return None

        def apply(uploads: RoundUploads) -> RoundUploads:
            attack = uploads.attacker_mask(self.share)[:, None]
            noise = self.deviation * uploads.normal("wire gaussian").to(uploads.rows.dtype)
            return replace(uploads, rows=noise.where(attack, uploads.rows))

        return UploadFilter("gaussian", apply, attacker_share=self.share)
