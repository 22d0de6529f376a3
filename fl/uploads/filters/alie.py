"""ALIE: attackers agree on an upload that is as far from the mean as honest ones may be.

Baruch, Baruch, Goldberg. A Little Is Enough: Circumventing Defenses For Distributed Learning.
NeurIPS 2019. arXiv:1902.06156.

Algorithm 3. Mean and deviation are those of what the round's attackers have trained themselves. A
single one has no deviation, and sends what it trained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Annotated, ClassVar

from fl.api import ANY, Bound, BuildContext, Crossing, Positive, Stage

Minority = Annotated[float, Bound(low=0, below=0.5)]


@dataclass(frozen=True)
class ALIE:
    """share: of the clients that attack, drawn by seed.
    z: deviations between their upload and the mean; by default the paper's z^max, from how many of
        a round attack.
    """

    share: Minority
    z: Positive | None = None

    tasks: ClassVar = ANY

    def build(self, context: BuildContext) -> Stage | None:
        """All attackers of a round send mean - z deviation, number by number."""
        if self.share == 0:
            return None

        def apply(crossing: Crossing) -> Crossing:
            attack, rows = crossing.attackers(self.share), crossing.rows
            count = int(attack.sum())
            if count == 0:
                return crossing
            z = farthest(len(rows), count) if self.z is None else self.z
            attacker_rows = rows[attack]
            upload = attacker_rows.mean(0) - z * attacker_rows.std(0, correction=0)
            return replace(crossing, rows=upload.expand_as(rows).where(attack[:, None], rows))

        return Stage("alie", apply)


def farthest(clients: int, attackers: int) -> float:
    """z^max: Phi(z) = (n - m - s) / (n - m), with s = floor(n / 2 + 1) - m honest ones to win over.

    At least 0; where attackers are many in a round, as if one honest client were to be won over.
    """
    honest = clients - attackers
    if honest < 2:
        return 0.0
    needed = max(1, clients // 2 + 1 - attackers)
    return max(0.0, NormalDist().inv_cdf(min(max(honest - needed, 1) / honest, 1 - 1e-9)))
