"""Mean of uploads, number by number, without the largest and the smallest.

Yin, Chen, Ramchandran, Bartlett. Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates. ICML 2018. arXiv:1803.01498.

Clients have equal weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from fl.api import ALL_TASKS, Aggregation, Bound, BuildContext

Trimmed = Annotated[float, Bound(low=0, below=0.5)]


@dataclass(frozen=True)
class TrimmedMean:
    """The trimmed mean of uploads.

    Attributes:
        share: beta, the share of a round's clients that is left out at each end, rounded up.
    """

    share: Trimmed = 0.1

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> Aggregation:
        """Return the rule of definition 2."""

        def combine(rows: Tensor, n: Tensor) -> Tensor:
            trimmed = trimmed_count(self.share, len(rows))
            return rows.sort(dim=0).values[trimmed : len(rows) - trimmed].mean(0)

        return Aggregation(combine)


def trimmed_count(share: float, clients: int) -> int:
    """Return the number of clients that are left out at each end; one or two clients remain."""
    rounded_up = -int(-round(share * clients, 9) // 1)
    return min(rounded_up, (clients - 1) // 2)
