"""Loss terms that hold the features of a batch to those of images that all clients share.

Supervised contrast: see `fl.blocks.contrastive_loss`. MMD: A. Gretton et al. A Kernel Two-Sample
Test. JMLR 2012, with five Gaussian kernels as in M. Long et al., Learning Transferable Features
with Deep Adaptation Networks, ICML 2015. The bandwidth of the middle kernel is the mean squared
distance of samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from fl.api import Forward, Term, Tree, keyed
from fl.blocks.contrastive_loss import supervised_contrastive_loss

ImageDistance = Literal["contrastive", "mmd"]
SHARED_IMAGE_STREAM = keyed.stream_number("shared images")
KERNEL_WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)


def shared_image_term(
    lam: float, kind: ImageDistance, tau: float, shared: Callable[[Tree], tuple[Tensor, Tensor]]
) -> Term:
    """Return lam times the distance between features of the batch and of shared images.

    Args:
        lam: The weight of the term.
        kind: The distance.
        tau: The temperature of the contrast.
        shared: A function that returns the images and their labels from a work tree.
    """

    def term(forward: Forward) -> Tensor:
        x, y = shared(forward.work)
        batch = forward.batch
        key = keyed.derive_keys(batch["key"][0], SHARED_IMAGE_STREAM) + torch.arange(
            len(x), device=x.device
        )
        shared_output = forward.network.train(forward.params, forward.work["buffers"], x, key=key)
        features, shared_features = (
            forward.output.features.flatten(1),
            shared_output.features.flatten(1),
        )
        if kind == "mmd":
            return lam * gaussian_mmd2(features, shared_features, batch["weight"])
        weight = torch.cat([batch["weight"], torch.ones_like(shared_features[:, 0])])
        samples = torch.cat([features, shared_features]), torch.cat([batch["y"], y])
        return lam * supervised_contrastive_loss(*samples, tau, weight)

    return term


def gaussian_mmd2(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Biased squared MMD of x and y, a scalar.

    It is summed over five Gaussian kernels exp(-|a - b|^2 / (w s)), w from 1/4 to 4. s is the mean
    squared distance of different samples, and has no gradient.

    Args:
        x: The first sample, [n, d].
        y: The second sample, [m, d].
        weight: The weight of each row of x, [n].
    """
    samples = torch.cat([x, y])
    x_weight = torch.cat([weight, torch.zeros_like(y[:, 0])])
    counts = torch.cat([weight, torch.ones_like(y[:, 0])])
    centred = samples - samples.mean(0)
    length = centred.square().sum(1)
    distances = (length[:, None] + length - 2 * centred @ centred.T).clamp(min=0)
    total = counts.sum()
    pairs = counts[:, None] * counts
    scale = (distances.detach() * pairs).sum() / (total * (total - 1)).clamp(min=1)
    kernel = sum(torch.exp(-distances / (w * scale.clamp(min=1e-12))) for w in KERNEL_WIDTHS)
    share = x_weight / x_weight.sum().clamp(min=1) - (counts - x_weight) / len(y)
    return share @ kernel @ share
