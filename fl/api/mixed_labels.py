"""Labels that are mixed as samples or their features are: what Mixup and its kin do to the loss.

A mix is a pair: the partners, places in the batch, int64 [b]; and how much of each sample is its
own, [b]. Under `MIXED`, a batch has the mixes of its pass, in their order. As the cross-entropy is
linear in the target, the cross-entropy with mixed labels is the mix of those with either label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

MIXED = "mixed"

Mix = tuple[Tensor, Tensor]


def remember(batch: Mapping[str, Any], partner: Tensor, share: Tensor) -> dict[str, Any]:
    """The batch with one more mix."""
    return {**batch, MIXED: (*batch.get(MIXED, ()), (partner, share))}


def mixed(values: Tensor, partner: Tensor, share: Tensor) -> Tensor:
    """own v_i + (1 - own) v_partner, for values v [b, ...]."""
    share = share.to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))
    return share * values + (1 - share) * values[partner]


def mixed_labels(labels: Tensor, outputs: Tensor, mixes: Sequence[Mix]) -> Tensor:
    """The labels after all mixes, as shares of classes [b, classes].

    Args:
        labels: [b].
        outputs: [b, classes]; they say how many classes there are.
    """
    # `one_hot` asks for the values, which nobody has in a gradient within a stack of clients.
    classes = torch.arange(outputs.shape[1], device=labels.device)
    shares = (labels[..., None] == classes).to(outputs.dtype)
    for partner, share in mixes:
        shares = mixed(shares, partner, share)
    return shares
