"""Supervised contrastive loss: it draws samples of one class together and pushes others apart.

P. Khosla et al. Supervised Contrastive Learning. NeurIPS 2020. arXiv:2004.11362 (equation 2).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def supervised_contrastive_loss(
    features: Tensor, labels: Tensor, tau: float = 0.07, weight: Tensor | None = None
) -> Tensor:
    """Supervised contrastive loss, a scalar.

    It is the mean over anchors i of -mean_p log softmax_p(<z_i, z_p> / tau), where p are the
    positives of i and the softmax runs over all other samples.

    Args:
        features: Features, [n, d]; they are normalised to length 1 here.
        labels: Classes, [n]. Positives are the other samples with the anchor's label; the loss of
            an anchor without positives is 0.
        tau: The temperature.
        weight: Weights, [n]; samples with weight 0 are neither anchors nor compared.
    """
    z = F.normalize(features, dim=1)
    is_present = torch.ones_like(z[:, 0]) if weight is None else weight.to(z.dtype)
    is_compared = is_present * (1 - torch.eye(len(z), dtype=z.dtype, device=z.device))
    logits = z @ z.T / tau
    # Far below the largest logit, but finite, because 0 * inf is not a number.
    logits = torch.where(is_compared > 0, logits, torch.finfo(z.dtype).min)
    log_share = logits - logits.logsumexp(1, keepdim=True)
    positive = is_compared * (labels[:, None] == labels)
    count = positive.sum(1)
    losses = -(torch.where(positive > 0, log_share, 0)).sum(1) / count.clamp(min=1)
    return (losses * is_present).sum() / is_present.sum().clamp(min=1)
