"""Channel statistics of features, which are randomised in training and compared between clients.

Zhou, Konukoglu. FedFA: Federated Feature Augmentation. ICLR 2023. arXiv:2301.12995, and its sequel,
Zhou, Yuan, Wang, Konukoglu. Federated Feature Augmentation and Alignment. IEEE TPAMI 2024.

All functions allow further dimensions before those in their docstrings.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fl.api import Tree, trees

VARIANCE_EPS = 1e-6
"""Added to variances, as in the released code."""


def channel_moments(x: Tensor, eps: float = VARIANCE_EPS) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel over space, [b, c] each, for x [b, c, h, w].

    The deviation is the root of the unbiased variance (0 for one pixel) plus ``eps``.
    """
    pixels = x.shape[-2] * x.shape[-1]
    variance = x.var((-2, -1), correction=min(1, pixels - 1))
    return x.mean((-2, -1)), (variance + eps).sqrt()


def restyle(x: Tensor, mean: Tensor, sd: Tensor, new_mean: Tensor, new_sd: Tensor) -> Tensor:
    """Replace channel means and deviations: (x - mean) / sd * new_sd + new_mean.

    x is [b, c, h, w], and the four statistics are [b, c].
    """
    scale = new_sd / sd
    shift = new_mean - mean * scale
    return x * scale[..., None, None] + shift[..., None, None]


def batch_mean(values: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean [c] of values over the samples with a weight; 0 if no sample has one.

    Args:
        values: Values by sample and channel, [b, c].
        weight: Weights by sample, [b]; without it all samples count.
    """
    if weight is None:
        return values.mean(-2)
    share = weight.to(values.dtype)[..., None]
    return (values * share).sum(-2) / share.sum(-2).clamp(min=1)


def batch_variance(values: Tensor, weight: Tensor | None = None) -> Tensor:
    """Unbiased variance [c] of values [b, c] over the samples that `batch_mean` counts.

    It is 0 for fewer than two samples.
    """
    if weight is None:
        return values.var(-2, correction=min(1, values.shape[-2] - 1))
    share = weight.to(values.dtype)[..., None]
    deviations = values - batch_mean(values, weight)[..., None, :]
    return (deviations.square() * share).sum(-2) / (share.sum(-2) - 1).clamp(min=1)


def augment(
    x: Tensor,
    noise_mean: Tensor,
    noise_sd: Tensor,
    gamma_mean: Tensor,
    gamma_sd: Tensor,
    eps: float = VARIANCE_EPS,
    weight: Tensor | None = None,
) -> Tensor:
    """Draw new channel means and deviations for features, around their present ones.

    The variance of a statistic is (gamma + 1) times its variance over the batch (plus ``eps``).
    Gradients flow through all statistics, as in the released code.

    Args:
        x: Features, [b, c, h, w].
        noise_mean: Standard normal numbers for the means, [b, c].
        noise_sd: Standard normal numbers for the deviations, [b, c].
        gamma_mean: The addition of other clients to the variance of means, [c].
        gamma_sd: The addition of other clients to the variance of deviations, [c].
        eps: A number that is added to variances.
        weight: Weights by sample, [b]; samples with weight 0 are left out of the variance over the
            batch.
    """
    mean, sd = channel_moments(x, eps)
    statistics = []
    for statistic, noise, gamma in ((mean, noise_mean, gamma_mean), (sd, noise_sd, gamma_sd)):
        spread = ((gamma + 1) * (batch_variance(statistic, weight) + eps)).sqrt()
        statistics.append(statistic + noise * spread[..., None, :])
    return restyle(x, mean, sd, *statistics)


def adaptive_weights(variance: Tensor, eps: float = VARIANCE_EPS) -> Tensor:
    """Weight of each channel by its variance over clients, [C]; 1 on average.

    It is C t / sum t with t = 1 / (1 + 1 / (variance + eps)), for variances [C].
    """
    t = 1 / (1 + 1 / (variance + eps))
    return t * (variance.shape[-1] / t.sum(-1, keepdim=True))


def update_running_means(running: Tree, batch_means: Tree, is_met: Tensor, momentum: float) -> Tree:
    """Update running means [c] by those of a batch; they stay as they are if ``is_met`` is 0."""

    def move(old: Tensor, new: Tensor) -> Tensor:
        next_mean = momentum * old + (1 - momentum) * new
        return torch.where(trees.align(is_met, old) > 0, next_mean, old)

    return trees.apply(move, running, batch_means)
