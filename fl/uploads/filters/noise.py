"""Gaussian noise on the mean of clipped uploads: client-level differential privacy.

McMahan, Ramage, Talwar, Zhang. Learning Differentially Private Recurrent Language Models. ICLR
2018. arXiv:1710.06963.

The server, which is trusted, adds it once to the mean. Clients weigh alike (`weighting: uniform`),
and as many as in every round are drawn, not each by a chance of its own as in the paper: see
`fl.report.privacy` for what epsilon follows. Numbers are pseudorandom floats, which is enough to
study what noise does, not to publish a model of people's data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch

from fl.api import ANY, Bound, BuildContext, Crossing, NonNegative, Stage, per_round
from fl.uploads.filters.adaptive_clip import on_the_mean

Chance = Annotated[float, Bound(above=0, below=1)]


@dataclass(frozen=True)
class Noise:
    """multiplier: z; with S the norm of the clip before, the sum gets noise N(0, (z S)^2).
    delta: at which epsilon is told; by default 1 / clients.
    """

    multiplier: NonNegative
    delta: Chance | None = None

    tasks: ClassVar = ANY

    def build(self, context: BuildContext) -> Stage | None:
        """A stage for after a clip, with noise N(0, (z S / m)^2) on the mean of m clients."""
        if self.multiplier == 0:
            return None
        clients = per_round(context)

        def apply(crossing: Crossing) -> Crossing:
            assert crossing.bound is not None
            z = self.multiplier
            if crossing.counted:
                z = on_the_mean(z, crossing.counted * clients)
            deviation = z * crossing.bound / clients
            noise = deviation * crossing.normal("wire noise", of_server=True)
            rows = crossing.rows + noise.to(crossing.rows.dtype)
            return replace(crossing, rows=rows, weights=torch.ones_like(crossing.weights))

        return Stage("noise", apply, multiplier=self.multiplier)
