"""RFA: the point with the smallest mean distance to uploads.

Pillutla, Kakade, Harchaoui. Robust Aggregation for Federated Learning. IEEE Transactions on Signal
Processing 2022. arXiv:1912.13445.

Algorithm 2, the smoothed Weiszfeld algorithm, from the weighted mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fl.api import ALL_TASKS, Aggregation, BuildContext, Count, Positive


@dataclass(frozen=True)
class GeometricMedian:
    """The geometric median of uploads.

    Attributes:
        steps: steps of the algorithm.
        nu: the smallest distance; smaller ones count as this.
    """

    steps: Count = 3
    nu: Positive = 1e-6

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> Aggregation:
        """Return the rule v <- sum_k b_k w_k / sum_k b_k, with b_k = n_k / max(nu, ||v - w_k||)."""

        def combine(rows: Tensor, n: Tensor) -> Tensor:
            double_rows, share = rows.double(), n.double() / n.sum()
            v = share @ double_rows
            for _ in range(self.steps):
                b = share / (double_rows - v).norm(dim=1).clamp(min=self.nu)
                v = b @ double_rows / b.sum()
            return v.to(rows.dtype)

        return Aggregation(combine)
