"""Attackers that send the opposite of their update.

Li, Xu, Chen, Giannakis, Ling. RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed
Learning from Heterogeneous Datasets. AAAI 2019. arXiv:1811.03761.

The paper flips models; here the change of a model is flipped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fl.api import ALL_TASKS, BuildContext, Positive, RoundUploads, Share, UploadFilter


@dataclass(frozen=True)
class SignFlip:
    """Opposite updates of attackers.

    Attributes:
        share: the share of clients that attack, drawn by seed.
        times: the factor by which their upload is longer.
    """

    share: Share
    times: Positive = 1.0

    tasks: ClassVar = ALL_TASKS
    attacks: ClassVar = True

    def build(self, context: BuildContext) -> UploadFilter | None:
        """Return a filter that replaces d by -times d."""
        if self.share == 0:
            return None

        def apply(uploads: RoundUploads) -> RoundUploads:
            attack = uploads.attacker_mask(self.share)[:, None]
            return replace(uploads, rows=(-self.times * uploads.rows).where(attack, uploads.rows))

        return UploadFilter("sign-flip", apply, attacker_share=self.share)
