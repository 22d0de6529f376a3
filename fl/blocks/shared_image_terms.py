"""Terms that hold the features of a batch to those of images that all clients share.

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
SHARED_IMAGE_STREAM = keyed.stream_of("shared images")
KERNEL_WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)


def shared_image_term(
    lam: float, kind: ImageDistance, tau: float, shared: Callable[[Tree], tuple[Tensor, Tensor]]
) -> Term:
    """lam times the distance between features of the batch and of shared images.

    Args:
        tau: The temperature of the contrast.
        shared: From a work tree, the images and their labels.
    """

    def term(forward: Forward) -> Tensor:
        x, y = shared(forward.work)
        batch = forward.batch
        key = keyed.derived(batch["key"][0], SHARED_IMAGE_STREAM) + torch.arange(
            len(x), device=x.device
        )
        passed = forward.network.train(forward.params, forward.work["buffers"], x, key=key)
        features, others = forward.output.features.flatten(1), passed.features.flatten(1)
        if kind == "mmd":
            return lam * gaussian_mmd2(features, others, batch["weight"])
        weight = torch.cat([batch["weight"], torch.ones_like(others[:, 0])])
        both = torch.cat([features, others]), torch.cat([batch["y"], y])
        return lam * supervised_contrastive_loss(*both, tau, weight)

    return term


def gaussian_mmd2(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The biased squared MMD of x [n, d] and y [m, d], a scalar.

    Summed over five Gaussian kernels exp(-|a - b|^2 / (w s)), w from 1/4 to 4. s is the mean
    squared distance of different samples, and has no gradient.

    Args:
        weight: How much each row of x counts, [n].
    """
    both = torch.cat([x, y])
    mine = torch.cat([weight, torch.zeros_like(y[:, 0])])
    counts = torch.cat([weight, torch.ones_like(y[:, 0])])
    centred = both - both.mean(0)
    length = centred.square().sum(1)
    distances = (length[:, None] + length - 2 * centred @ centred.T).clamp(min=0)
    total = counts.sum()
    pairs = counts[:, None] * counts
    scale = (distances.detach() * pairs).sum() / (total * (total - 1)).clamp(min=1)
    kernel = sum(torch.exp(-distances / (w * scale.clamp(min=1e-12))) for w in KERNEL_WIDTHS)
    share = mine / mine.sum().clamp(min=1) - (counts - mine) / len(y)
    return share @ kernel @ share
