"""Clipping of uploads to a norm that follows a quantile of their norms.

Andrew, Thakkar, McMahan, Ramaswamy. Differentially Private Learning with Adaptive Clipping. NeurIPS
2021. arXiv:1905.03871.

Algorithm 1. The share of uploads within the norm gets noise, by `count_noise`; with `noise` after
it, the noise on the mean is increased so that both together cost as much as `noise` alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from fl.api import (
    ALL_TASKS,
    BuildContext,
    NonNegative,
    Positive,
    RoundUploads,
    Share,
    UploadFilter,
    per_round,
)
from fl.uploads.filters.clip import clip_rows


@dataclass(frozen=True)
class AdaptiveClip:
    """Clipping to an adaptive norm.

    Attributes:
        initial: the norm of round 1.
        quantile: gamma, the target share of uploads within the norm.
        rate: eta_C of C <- C exp(-eta_C (b - gamma)), where b is the noisy share of a round.
        count_noise: sigma_b over the clients of a round, the deviation of the noise on that share.
    """

    initial: Positive = 0.1
    quantile: Share = 0.5
    rate: NonNegative = 0.2
    count_noise: NonNegative = 0.05

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> UploadFilter:
        """Return a filter with bound C, which the server keeps."""
        clients = per_round(context)

        def apply(uploads: RoundUploads) -> RoundUploads:
            norm = uploads.server_state["norm"]
            is_within = uploads.rows.double().norm(dim=1) <= norm
            noise = uploads.normal("wire count", of_server=True)[0, 0]
            share = is_within.sum() / clients + self.count_noise * noise
            next_norm = norm * (-self.rate * (share - self.quantile)).exp()
            rows = clip_rows(uploads.rows, norm)
            noised = replace(uploads, rows=rows, norm_bound=norm, count_noise=self.count_noise)
            return replace(noised, server_state={"norm": next_norm})

        def state(row: Tensor) -> Mapping[str, Tensor]:
            return {"norm": row.new_full((), self.initial).double()}

        return UploadFilter(
            "adaptive-clip",
            apply,
            init_server_state=state,
            bounds_norm=True,
            count_noise=self.count_noise,
        )


def multiplier_on_mean(multiplier: float, counted: float) -> float:
    """Return the noise on the mean that, with noise on the count, costs as much as z alone.

    z_Delta = (z^-2 - (2 sigma_b)^-2)^-1/2, theorem 1.

    Args:
        multiplier: The noise multiplier z.
        counted: The noise on the count, sigma_b, above z / 2.
    """
    return 1 / math.sqrt(multiplier**-2 - (2 * counted) ** -2)
