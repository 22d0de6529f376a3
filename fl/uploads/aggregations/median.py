"""Median of uploads, number by number.

Yin, Chen, Ramchandran, Bartlett. Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates. ICML 2018. arXiv:1803.01498.

For an even number of clients it is the mean of the two in the middle. Clients have equal weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fl.api import ALL_TASKS, Aggregation, BuildContext


@dataclass(frozen=True)
class Median:
    """The median has no keys."""

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> Aggregation:
        """Return the rule of definition 1."""
        return Aggregation(median_of_rows)


def median_of_rows(rows: Tensor, n: Tensor) -> Tensor:
    """Median of rows [K, d] over K, [d]."""
    ordered, last = rows.sort(dim=0).values, len(rows) - 1
    return (ordered[last // 2] + ordered[(last + 1) // 2]) / 2
