"""Distances that distil a data set into few images: between gradients, and between features.

B. Zhao, K. R. Mopuri, H. Bilen. Dataset Condensation with Gradient Matching. ICLR 2021.
arXiv:2006.05929 (section 2.3 and its code, for gradients); B. Zhao, H. Bilen. Dataset Condensation
with Distribution Matching. WACV 2023. arXiv:2110.04181 (equation 4, for features).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LENGTH_EPS = 1e-6
"""Added to the product of two lengths, so that a row of zeros is at distance 1."""


def gradient_distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Distance of two gradients: the sum over tensors and rows of 1 - <r, s> / (|r| |s| + 1e-6).

    The result is a scalar, 0 without a row. A row is a tensor at one index of dimension 0, as a
    vector: the weights that lead to one output. Tensors of one dimension (biases, scales of a
    normalisation) are left out.

    Args:
        a: Gradients by some weights.
        b: Gradients by the same weights, in the same order.
    """
    pairs = [(r.flatten(1), s.flatten(1)) for r, s in zip(a, b, strict=True) if r.dim() > 1]
    if not pairs:
        return torch.zeros(())
    return torch.stack([_cosine_distance(r, s) for r, s in pairs]).sum()


def _cosine_distance(r: Tensor, s: Tensor) -> Tensor:
    inner = (r * s).sum(-1)
    return (1 - inner / (_row_length(r) * _row_length(s) + LENGTH_EPS)).sum()


def _row_length(rows: Tensor) -> Tensor:
    """Length of every row; if it is 0, its gradient is 0 too."""
    square = rows.square().sum(-1)
    is_nonzero = square > 0
    return torch.where(is_nonzero, square, 1).sqrt() * is_nonzero


def distribution_distance(real: Sequence[Tensor], virtual: Sequence[Tensor]) -> Tensor:
    """Distance of feature means: sum over classes of || mean real - mean virtual ||^2, a scalar.

    A class without real features is left out.

    Args:
        real: By class, the features [n, d] of its real images; n may differ.
        virtual: By class, the features [m, d] of its virtual images; m may differ.
    """
    mean_pairs = [(r.mean(0), v.mean(0)) for r, v in zip(real, virtual, strict=True) if len(r)]
    if not mean_pairs:
        return torch.zeros(())
    return torch.stack([(r - v).square().sum() for r, v in mean_pairs]).sum()


def stacked_distribution_distance(real: Tensor, virtual: Tensor, weight: Tensor) -> Tensor:
    """Return `distribution_distance` of all classes at once.

    Args:
        real: Features [classes, n, d].
        virtual: Features [classes, m, d].
        weight: Weights of the real features, [classes, n]; 0 leaves a feature out.
    """
    total = weight.sum(1)
    mean = (real * weight.unsqueeze(-1)).sum(1) / total.clamp(min=1).unsqueeze(-1)
    squared_distance = (mean - virtual.mean(1)).square().sum(-1)
    return torch.where(total > 0, squared_distance, 0).sum()
