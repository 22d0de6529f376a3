"""ALIE: attackers send an upload that is as far from the mean as honest ones may be.

Baruch, Baruch, Goldberg. A Little Is Enough: Circumventing Defenses For Distributed Learning.
NeurIPS 2019. arXiv:1902.06156.

Algorithm 3. Mean and deviation are those of the models that the round's attackers have trained. A
single attacker has no deviation, and sends its trained model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Annotated, ClassVar

from fl.api import ALL_TASKS, Bound, BuildContext, Positive, RoundUploads, UploadFilter

Minority = Annotated[float, Bound(low=0, below=0.5)]


@dataclass(frozen=True)
class ALIE:
    """The attack "A little is enough".

    Attributes:
        share: the share of clients that attack, drawn by seed.
        z: deviations between their upload and the mean; by default the paper's z^max, from the
            number of attackers in a round.
    """

    share: Minority
    z: Positive | None = None

    tasks: ClassVar = ALL_TASKS
    attacks: ClassVar = True

    def build(self, context: BuildContext) -> UploadFilter | None:
        """Return a filter in which all attackers of a round send mean - z deviation."""
        if self.share == 0:
            return None

        def apply(uploads: RoundUploads) -> RoundUploads:
            attack, rows = uploads.attacker_mask(self.share), uploads.rows
            count = int(attack.sum())
            if count == 0:
                return uploads
            z = largest_deviation(len(rows), count) if self.z is None else self.z
            attacker_rows = rows[attack]
            upload = attacker_rows.mean(0) - z * attacker_rows.std(0, correction=0)
            return replace(uploads, rows=upload.expand_as(rows).where(attack[:, None], rows))

        return UploadFilter("alie", apply, attacker_share=self.share)


def largest_deviation(clients: int, attackers: int) -> float:
    """Return z^max: Phi(z) = (n - m - s) / (n - m), with s = floor(n / 2 + 1) - m.

    s is the number of honest clients that the attackers have to win over. z^max is at least 0; with
    many attackers in a round, s counts as 1.
    """
    honest = clients - attackers
    if honest < 2:
        return 0.0
    needed = max(1, clients // 2 + 1 - attackers)
    return max(0.0, NormalDist().inv_cdf(min(max(honest - needed, 1) / honest, 1 - 1e-9)))
