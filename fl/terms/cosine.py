"""Drift of features by their angle: the angle between features of the local and the shared model.

Ayromlou, Emerson. Adaptive Latent-Space Constraints in Personalized FL. 2025 (the baseline of
tables 1 and 2).

As the paper says, similarity is rewarded; in the released code the loss is the mean |cos|, which
does the opposite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import ALL_TASKS, BuildContext, Forward, NonNegative, ReferenceTerm, weighted_mean
from fl.blocks.drift import Drift


@dataclass(frozen=True)
class Cosine:
    """The penalty mu sum_l mean_i (1 - cos(f_l(x_i; w), f_l(x_i; w_shared))).

    Attributes:
        layers: names of the model's modules whose features f_l are held.
        mu: its weight.
    """

    layers: tuple[str, ...]
    mu: NonNegative = 0.1

    title: ClassVar = "Cos. Sim."
    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> ReferenceTerm:
        """Return the term: the weighted mean over the batch, summed over layers."""
        drift = Drift.tapping(context, self.layers)

        def term(forward: Forward) -> Tensor:
            layers = drift.features(forward).values()
            distances = [1 - F.cosine_similarity(t["own"], t["shared"], dim=-1) for t in layers]
            return self.mu * weighted_mean(torch.stack(distances).sum(0), forward.batch)

        return ReferenceTerm(term, drift.reference, self.layers)
