"""DAC-SC: the amplitudes of features are normalised in part, and their phases stay.

Lee, Bae, Kim. Decompose, Adjust, Compose: Effective Normalization by Playing with Frequency for
Domain Generalization. CVPR 2023. arXiv:2303.02328.

The paper's layers are normalisations with learned shares, in training and in evaluation. Here, as
an augmentation that can be compared with others, the share is random, and evaluation works without
it. For a channel x with mean m and deviation s, the amplitudes become lambda times those of x plus
1 - lambda times those of (x - m) / s, with lambda uniform, one for each sample. Normalising changes
no phase but that of the mean, which is a sign and is kept. So no Fourier transform is needed: the
result is (lambda + (1 - lambda) / s) (x - m) + lambda m.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fl.api import ALL_TASKS, Alteration, Batch, BuildContext, Share, Tree, keyed
from fl.blocks.batch_alterations import check_feature_maps, is_altered
from fl.blocks.feature_statistics import channel_moments

ALTER_STREAM, SHARE_STREAM = range(2)
"""Streams of a batch's keys."""


@dataclass(frozen=True)
class DACSC:
    """Features whose amplitudes are normalised in part.

    Attributes:
        layers: names of the model's modules whose images [b, c, h, w] are altered.
        p: probability that a batch is altered, drawn for each layer separately.
    """

    layers: tuple[str, ...]
    p: Share = 0.5

    title: ClassVar = "DAC-SC"
    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> Alteration:
        """Return the alteration, without a state."""

        def apply(layer: str, features: Tensor, batch: Batch, state: Tree) -> tuple[Tensor, Tree]:
            check_feature_maps(features, "alterations.dac-sc.layers", layer)
            altered = is_altered(batch["key"], ALTER_STREAM, self.p)
            share = keyed.uniform(batch["key"], SHARE_STREAM).to(features.dtype)
            return torch.where(altered, normalise_amplitudes(features, share), features), {}

        return Alteration("dac-sc", self.layers, apply)


def normalise_amplitudes(features: Tensor, share: Tensor) -> Tensor:
    """Normalise amplitudes of features [b, c, h, w] in part; each keeps a ``share``, [b]."""
    mean, sd = (statistic[..., None, None] for statistic in channel_moments(features))
    share = share.reshape(-1, 1, 1, 1)
    return (share + (1 - share) / sd) * (features - mean) + share * mean
