"""Means with weights that clients choose, such as equal ones, from uploads averaged by samples.

A server that uses nothing but the weighted mean of uploads (`fl.api.WeightedAverage`) need not
hold them all at once. For a mean with weights a, a client multiplies its values by a / n, where n
is its number of samples, or 1 with ``weighting: uniform``. The server divides the mean by the mean
of a / n: sum_k (n_k/N) (a_k t_k/n_k) / sum_k (n_k/N) (a_k/n_k) = sum_k a_k t_k / sum_k a_k. An
unweighted mean has a = 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fl.api import Training, Tree, trees


def unweighted_upload(tree: Tree, samples: Tensor, training: Training) -> Tree:
    """Return a client's upload of a tree; a client without samples has no weight.

    Args:
        tree: The values t_k.
        samples: The client's number of training samples, a scalar.
        training: The run's training settings, which say how clients are weighted.
    """
    return weighted_upload(tree, torch.ones_like(trees.leaves(tree)[0].sum()), samples, training)


def weighted_upload(tree: Tree, a: Tensor, samples: Tensor, training: Training) -> Tree:
    """Return a client's upload of a tree that has the weight ``a`` in the mean.

    Args:
        tree: The values t_k; counters (integer leaves) are sent as they are.
        a: The client's weight, a scalar.
        samples: The client's number of training samples, a scalar.
        training: The run's training settings, which say how clients are weighted.
    """
    uniform = training.weighting == "uniform"
    weight = torch.ones_like(samples) if uniform else samples.clamp(min=1)
    share = a / weight.to(a.dtype)
    return {"share": share, "values": trees.apply(lambda leaf: _scaled(leaf, share), tree)}


def reweighted_mean(mean: Tree) -> Any:
    """Return the mean of trees from the mean of their `unweighted_upload` or `weighted_upload`."""
    return trees.apply(lambda leaf: _scaled(leaf, 1 / mean["share"]), mean["values"])


def _scaled(leaf: Tensor, factor: Tensor) -> Tensor:
    return leaf * factor if leaf.is_floating_point() else leaf
