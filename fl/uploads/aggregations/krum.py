"""Krum: the upload that is nearest to its neighbours.

Blanchard, El Mhamdi, Guerraoui, Stainer. Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent. NeurIPS 2017. arXiv:1703.02757.

With `chosen` above 1 it is Multi-Krum. Clients have equal weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fl.api import ALL_TASKS, Aggregation, BuildContext, Count, Index


@dataclass(frozen=True)
class Krum:
    """Krum and Multi-Krum.

    Attributes:
        attackers: f, the most attackers in a round; a round has n >= 2 f + 3 clients.
        chosen: m, the number of the best uploads that are averaged.
    """

    attackers: Index = 1
    chosen: Count = 1

    tasks: ClassVar = ALL_TASKS

    @property
    def fewest_clients(self) -> int:
        """Smallest number of participants in a round."""
        return max(2 * self.attackers + 3, self.chosen + self.attackers)

    def build(self, context: BuildContext) -> Aggregation:
        """Average the m uploads with the smallest sums of squared distances to n - f - 2 others."""

        def combine(rows: Tensor, n: Tensor) -> Tensor:
            double_rows = rows.double()
            squared_distances = torch.cdist(
                double_rows, double_rows, compute_mode="donot_use_mm_for_euclid_dist"
            ).square()
            neighbour_distances = squared_distances.sort(dim=1).values[
                :, 1 : len(rows) - self.attackers - 1
            ]
            best_rows = neighbour_distances.sum(1).topk(self.chosen, largest=False).indices
            return rows[best_rows].mean(0)

        return Aggregation(combine, self.fewest_clients)
