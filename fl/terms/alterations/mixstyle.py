"""MixStyle: features partly take the style of another sample of the batch.

Zhou, Yang, Qiao, Xiang. Domain Generalization with MixStyle. ICLR 2021. arXiv:2104.02008.

A sample's style is the mean and the standard deviation of each of its channels over space. With
probability p a batch is altered: each sample's style becomes lambda of its own and 1 - lambda of a
partner's, lambda ~ Beta(alpha, alpha), one for each sample. No gradient flows through styles.

Partners are a permutation of the samples with a weight: samples that fill up a batch keep their
style. Domains are ignored (the paper's "random shuffle"), as a client mostly has one. The deviation
is that over all pixels, as the paper writes it; its code divides by one pixel less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fl.api import ALL_TASKS, Alteration, Batch, Bound, BuildContext, Share, Tree, keyed
from fl.blocks.batch_alterations import check_feature_maps, draw_partners, is_altered

STYLE_EPS = 1e-6
"""A number added to the variance, as in the released code."""

ALTER_STREAM, PARTNER_STREAM, SHARE_STREAM = range(3)
"""Streams of a batch's keys."""


@dataclass(frozen=True)
class MixStyle:
    """Features with mixed styles.

    Attributes:
        layers: names of the model's modules whose images [b, c, h, w] are altered, mostly the first
            blocks.
        p: probability that a batch is altered, drawn for each layer separately.
        alpha: parameter of the Beta distribution of lambda; the smaller it is, the nearer lambda is
            to 0 or 1.
    """

    layers: tuple[str, ...]
    p: Share = 0.5
    alpha: Annotated[float, Bound(low=0.001, high=2)] = 0.1

    title: ClassVar = "MixStyle"
    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> Alteration:
        """Return the alteration, without a state."""

        def apply(layer: str, features: Tensor, batch: Batch, state: Tree) -> tuple[Tensor, Tree]:
            check_feature_maps(features, "alterations.mixstyle.layers", layer)
            altered = is_altered(batch["key"], ALTER_STREAM, self.p)
            share = keyed.beta(batch["key"], SHARE_STREAM, self.alpha, self.alpha).to(
                features.dtype
            )
            mixed = mix_styles(
                features, draw_partners(batch["key"], batch["weight"], PARTNER_STREAM), share
            )
            return torch.where(altered, mixed, features), {}

        return Alteration("mixstyle", self.layers, apply)


def mix_styles(features: Tensor, partner: Tensor, share: Tensor) -> Tensor:
    """Mix the styles of features [b, c, h, w] with those of their partners.

    Args:
        features: Features.
        partner: The index of the partner in the batch, [b].
        share: The share of the own style, [b].
    """
    constant = features.detach()
    mean = constant.mean((2, 3), keepdim=True)
    sd = (constant.var((2, 3), correction=0, keepdim=True) + STYLE_EPS).sqrt()
    share = share.reshape(-1, 1, 1, 1)
    mixed_mean = share * mean + (1 - share) * mean[partner]
    mixed_sd = share * sd + (1 - share) * sd[partner]
    return (features - mean) / sd * mixed_sd + mixed_mean
