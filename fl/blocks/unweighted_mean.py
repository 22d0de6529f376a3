"""Unweighted means over clients, although uploads are averaged by samples.

A server that uses nothing but the weighted mean of uploads (`fl.api.WeightedAverage`) need not
hold them all at once. For an unweighted mean, a client divides its values by its weight n, which is
its number of samples, or 1 with ``weighting: uniform``. The server divides the mean by the mean of
1 / n: sum_k (n_k/N) (t_k/n_k) / sum_k (n_k/N) (1/n_k) = mean_k t_k.
"""

from __future__ import annotations

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
    uniform = training.weighting == "uniform"
    weight = torch.ones_like(samples) if uniform else samples.clamp(min=1)
    share = 1 / weight.to(trees.leaves(tree)[0].dtype)
    return {"share": share, "values": trees.apply(lambda leaf: leaf * share, tree)}


def unweighted_mean(mean: Tree) -> Tree:
    """Return the unweighted mean of trees from the weighted mean of their `unweighted_upload`."""
    return trees.apply(lambda leaf: leaf / mean["share"], mean["values"])
