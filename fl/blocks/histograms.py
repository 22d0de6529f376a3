"""Soft histograms of features, and a distance between two of them.

Zhou, Yuan, Wang, Konukoglu. Federated Feature Augmentation and Alignment. IEEE TPAMI 2024.

Soft bins are those of Yang, Garcia Morillo, Hospedales. Deep Neural Decision Trees. 2018.
arXiv:1806.06988. Eastwood, Mason, Williams, Schölkopf align features by them: Source-Free
Adaptation to Measurement Shift via Bottom-Up Feature Restoration. ICLR 2022. arXiv:2107.05446.
"""

from __future__ import annotations

import torch
from torch import Tensor

SHARE_EPS = 1e-6
"""A number added to the shares of a histogram, so that an empty bin has a logarithm."""


def positions_as_rows(features: Tensor) -> Tensor:
    """Reshape features [b, c, ...] to [b, positions, c]: each pixel of a map counts as a sample."""
    return features.flatten(2).movedim(1, -1) if features.dim() > 2 else features[:, None]


def soft_bins(values: Tensor, bins: int, tau: float) -> Tensor:
    """Share of each value in each bin, [..., bins]; the shares add up to 1.

    The logistic function brings values into the range from 0 to 1, which the bins divide equally.
    The shares are softmax((l u - sum_{j<l} j / bins) / tau), l = 1, 2, ...; as tau tends to 0, the
    edges of bins become sharp.
    """
    u = values.sigmoid()[..., None]
    number = torch.arange(bins, dtype=values.dtype, device=values.device)
    return (((number + 1) * u - (number / bins).cumsum(-1)) / tau).softmax(-1)


def histogram_sums(
    features: Tensor, weight: Tensor, bins: int, tau: float
) -> tuple[Tensor, Tensor]:
    """Sum `soft_bins` over samples and positions, [c, bins], and the weights of samples, a scalar.

    Args:
        features: Features, [b, c, ...].
        weight: The weight of each sample, [b].
        bins: The number of bins.
        tau: The temperature of the bins.
    """
    binned = soft_bins(positions_as_rows(features), bins, tau).mean(1)
    weight = weight.to(features.dtype)
    return torch.einsum("b,bcl->cl", weight, binned), weight.sum()


def symmetric_kl(p: Tensor, q: Tensor) -> Tensor:
    """Symmetric divergence (KL(p || q) + KL(q || p)) / 2 of histograms [..., bins]: [...]."""
    log_ratio = (p + SHARE_EPS).log() - (q + SHARE_EPS).log()
    return ((p - q) * log_ratio).sum(-1) / 2
