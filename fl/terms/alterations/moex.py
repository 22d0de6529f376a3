"""MOEx: features get the moments of another sample's features, and a share of its label.

Li, Wu, Lim, Belongie, Weinberger. On Feature Normalization and Data Augmentation. CVPR 2021.
arXiv:2002.11102.

The moments are those of positional normalisation: mean and deviation over channels at every pixel.
As in the released code, the deviation is the root of the unbiased variance plus 1e-5, gradients
flow through both samples' moments, and the share of the label is a constant, not random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fl.api import ALL_TASKS, Alteration, Batch, BuildContext, Share, Tree, remember
from fl.blocks.batch_alterations import (
    check_feature_maps,
    check_mixed_labels,
    draw_partners,
    is_altered,
)

MOMENT_EPS = 1e-5
"""A number added to the variance, as in the released code."""

ALTER_STREAM, PARTNER_STREAM = range(2)
"""Streams of a batch's keys."""

CHOICE_KEY = "moex"
"""Key of a batch: whether it is altered, and partners."""


@dataclass(frozen=True)
class MOEx:
    """Features with exchanged moments.

    Attributes:
        layers: names of the model's modules whose images [b, c, h, w] get other moments, mostly one
            early module.
        p: probability that a batch is altered (0.25 in the released code for CIFAR).
        lam: lambda, the share of the label that stays the sample's own (0.5 there).
    """

    layers: tuple[str, ...]
    p: Share = 0.25
    lam: Share = 0.5

    title: ClassVar = "MOEx"
    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> Alteration:
        """Return the alteration, without a state."""
        check_mixed_labels(context, "moex")

        def prepare(batch: Batch) -> Batch:
            altered = is_altered(batch["key"], ALTER_STREAM, self.p)
            partner = draw_partners(batch["key"], batch["weight"], PARTNER_STREAM)
            share = (1 - (1 - self.lam) * altered.double()).expand(len(partner))
            return {**remember(batch, partner, share), CHOICE_KEY: (altered, partner)}

        def apply(layer: str, features: Tensor, batch: Batch, state: Tree) -> tuple[Tensor, Tree]:
            check_feature_maps(features, "alterations.moex.layers", layer)
            altered, partner = batch[CHOICE_KEY]
            return torch.where(altered, exchange_moments(features, partner), features), {}

        return Alteration("moex", self.layers, apply, change_batch=prepare)


def exchange_moments(features: Tensor, partner: Tensor) -> Tensor:
    """Give features [b, c, h, w] the moments of their ``partner`` [b], an index in the batch."""
    mean = features.mean(1, keepdim=True)
    correction = min(1, features.shape[1] - 1)
    sd = (features.var(1, correction=correction, keepdim=True) + MOMENT_EPS).sqrt()
    return (features - mean) / sd * sd[partner] + mean[partner]
