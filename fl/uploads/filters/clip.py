"""Clipping of uploads: a client's change is shortened to a norm.

McMahan, Ramage, Talwar, Zhang. Learning Differentially Private Recurrent Language Models. ICLR
2018. arXiv:1710.06963.

Flat clipping: one norm for the whole upload. With `noise` after it, the mean over a fixed number of
clients of equal weight is the paper's estimator with a fixed denominator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fl.api import ALL_TASKS, BuildContext, Positive, RoundUploads, UploadFilter


@dataclass(frozen=True)
class Clip:
    """Clipping to a fixed norm.

    Attributes:
        norm: S; an upload d becomes d min(1, S / ||d||).
    """

    norm: Positive

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> UploadFilter:
        """Return a filter with bound S."""

        def apply(uploads: RoundUploads) -> RoundUploads:
            bound = torch.tensor(self.norm, dtype=torch.float64, device=uploads.rows.device)
            return replace(uploads, rows=clip_rows(uploads.rows, bound), norm_bound=bound)

        return UploadFilter("clip", apply, bounds_norm=True)


def clip_rows(rows: Tensor, bound: Tensor) -> Tensor:
    """Shorten rows [K, d] to the bound, a scalar, if they are longer."""
    length = rows.double().norm(dim=1, keepdim=True)
    # Rows that are short enough are multiplied by exactly 1.
    factor = torch.where(length > bound, bound / length, 1.0)
    return (rows * factor).to(rows.dtype)
