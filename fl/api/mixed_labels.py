"""Labels that are mixed like samples or features are, for Mixup and similar methods.

A mix is a pair: the index of each sample's partner in the batch, int64 [b], and each sample's own
share, [b]. Under `MIXED`, a batch has the mixes of its pass in their order. The cross-entropy is
linear in the target, so the cross-entropy of mixed labels is the mix of the two cross-entropies.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fl.api.protocols import Batch

MIXED = "mixed"

Mix = tuple[Tensor, Tensor]


def remember(batch: Batch, partner: Tensor, share: Tensor) -> Batch:
    """Return the batch with one more mix."""
    return {**batch, MIXED: (*batch.get(MIXED, ()), (partner, share))}


def mixed(values: Tensor, partner: Tensor, share: Tensor) -> Tensor:
    """Return the mix share v_i + (1 - share) v_partner of values v [b, ...]."""
    share = share.to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))
    return share * values + (1 - share) * values[partner]


def mixed_labels(labels: Tensor, outputs: Tensor, mixes: Sequence[Mix]) -> Tensor:
    """Return the labels after all mixes, as shares of classes [b, classes].

    Args:
        labels: [b].
        outputs: Outputs [b, classes], for the number of classes and the type.
        mixes: The mixes of the batch, in their order.
    """
    # `one_hot` reads values, which is impossible under vmap within a gradient.
    classes = torch.arange(outputs.shape[1], device=labels.device)
    shares = (labels[..., None] == classes).to(outputs.dtype)
    for partner, share in mixes:
        shares = mixed(shares, partner, share)
    return shares
