"""Clusters of clients whose models are shared inside each cluster."""

from __future__ import annotations

import torch
from torch import Tensor


def bipartition(similarity: Tensor) -> Tensor:
    """Two groups between which the largest similarity is as small as possible: [K] of 0 and 1.

    Clients are joined in the order of their similarity, the largest first, until two groups are
    left (Sattler et al. 2021, algorithm 1). The result is exact: it is Kruskal's spanning tree
    without its weakest edge. The first client is in group 0.

    Args:
        similarity: [K, K], symmetric; K at least 2.
    """
    count = len(similarity)
    group = list(range(count))
    left, right = torch.triu_indices(count, count, offset=1)
    order = torch.argsort(similarity[left, right], descending=True, stable=True)
    joined = 0
    for edge in order.tolist():
        if joined == count - 2:
            break
        kept, other = group[int(left[edge])], group[int(right[edge])]
        if kept != other:
            group = [kept if member == other else member for member in group]
            joined += 1
    return torch.tensor([int(member != group[0]) for member in group])
