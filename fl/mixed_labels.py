"""Labels that are mixed as samples or their features are: what Mixup and its kin do to the loss.

A mix is a pair: partners, places in the batch, int64 [b], and how much of each sample is its own,
[b]. A batch has those of its pass, in their order, under `MIXED`. As the cross-entropy is linear in
the target, that with mixed labels is the mix of the cross-entropies with either label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

MIXED = "mixed"

Mix = tuple[Tensor, Tensor]


def remember(batch: Mapping[str, Any], partner: Tensor, own: Tensor) -> dict[str, Any]:
    """The batch with one mix more."""
    return {**batch, MIXED: (*batch.get(MIXED, ()), (partner, own))}


def mixed(values: Tensor, partner: Tensor, own: Tensor) -> Tensor:
    """own v_i + (1 - own) v_partner of values [b, ...]."""
    own = own.to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))
    return own * values + (1 - own) * values[partner]


def mixed_labels(labels: Tensor, outputs: Tensor, mixes: Sequence[Mix]) -> Tensor:
    """Labels [b] of outputs [b, classes] as shares of classes, [b, classes], after all mixes."""
    # `one_hot` asks for the values, which nobody has in a gradient within a stack of clients.
    classes = torch.arange(outputs.shape[1], device=labels.device)
    shares = (labels[..., None] == classes).to(outputs.dtype)
    for partner, own in mixes:
        shares = mixed(shares, partner, own)
    return shares
