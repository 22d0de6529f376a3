"""FedDecorr: features are kept from collapsing into few dimensions.

Shi, Liang, Zhang, Tan, Bai. Towards Understanding and Mitigating Dimensional Collapse in
Heterogeneous Federated Learning. ICLR 2023. arXiv:2210.00226.

Features are what goes into the classifier. The penalty of the authors' code (bytedance/FedDecorr,
973e4af2, `loss.py`) grows with the batch: for N samples it is (N - 1)^2 / N times the mean squared
correlation off the diagonal. Its weight of .1 belongs to batches of 64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fl.api import ALL_TASKS, BuildContext, Forward, NonNegative, Term

MIN_VARIANCE = 1e-8
"""Added to variances, as in the authors' code."""


@dataclass(frozen=True)
class FedDecorr:
    """The penalty beta ||K||_F^2 / d^2, with K the correlations of d features over the batch.

    Attributes:
        beta: Weight of the penalty.
        scale: The `paper`'s formula, equation 7, or what is `released`.
    """

    beta: NonNegative = 0.1
    scale: Literal["paper", "released"] = "released"

    title: ClassVar = "FedDecorr"
    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> Term:
        """Return the term; 0 for a batch of one sample."""

        def term(forward: Forward) -> Tensor:
            return self.beta * self.penalty(
                forward.output.features.flatten(1), forward.batch["weight"]
            )

        return term

    def penalty(self, features: Tensor, weight: Tensor) -> Tensor:
        """Penalty of features [b, d]; samples of weight 0 do not count."""
        count = (weight > 0).to(features.dtype)
        n = count.sum()
        mean = (count[:, None] * features).sum(0) / n.clamp(min=1)
        centred = count[:, None] * (features - mean)
        variance = centred.square().sum(0) / (n - 1).clamp(min=1)
        standardised = centred / (variance + MIN_VARIANCE).sqrt()
        products = standardised.T @ standardised
        width = features.shape[1]
        if self.scale == "paper":
            value = (products / (n - 1).clamp(min=1)).square().sum() / width**2
        else:
            off_diagonal = products.square().sum() - products.diagonal().square().sum()
            value = off_diagonal / max(width * (width - 1), 1) / n.clamp(min=1)
        return torch.where(n > 1, value, 0 * value)
