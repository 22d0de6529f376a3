"""Gaussian noise on the mean of clipped uploads: client-level differential privacy.

McMahan, Ramage, Talwar, Zhang. Learning Differentially Private Recurrent Language Models. ICLR
2018. arXiv:1710.06963.

The server, which is trusted, adds it once to the mean. Clients have equal weights (`weighting:
uniform`). A fixed number of them is drawn in every round; in the paper each is drawn independently.
`fl.report.privacy` describes the resulting epsilon. Numbers are pseudorandom floats, which is
enough to study the effect of noise, but not to publish a model of people's data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch

from fl.api import (
    ALL_TASKS,
    Bound,
    BuildContext,
    NonNegative,
    RoundUploads,
    UploadFilter,
    per_round,
)
from fl.uploads.filters.adaptive_clip import multiplier_on_mean

Chance = Annotated[float, Bound(above=0, below=1)]


@dataclass(frozen=True)
class Noise:
    """Gaussian noise on the mean.

    Attributes:
        multiplier: z; with S the norm of the clip before, the sum gets noise N(0, (z S)^2).
        delta: delta at which epsilon is reported; by default 1 / clients.
    """

    multiplier: NonNegative
    delta: Chance | None = None

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> UploadFilter | None:
        """Return a filter that adds noise N(0, (z S / m)^2) to the mean of m clients."""
        if self.multiplier == 0:
            return None
        clients = per_round(context)

        def apply(uploads: RoundUploads) -> RoundUploads:
            assert uploads.norm_bound is not None
            z = self.multiplier
            if uploads.count_noise:
                z = multiplier_on_mean(z, uploads.count_noise * clients)
            deviation = z * uploads.norm_bound / clients
            noise = deviation * uploads.normal("wire noise", of_server=True)
            rows = uploads.rows + noise.to(uploads.rows.dtype)
            return replace(uploads, rows=rows, weights=torch.ones_like(uploads.weights))

        return UploadFilter("noise", apply, noise_multiplier=self.multiplier)
