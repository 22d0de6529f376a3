"""Unweighted means over clients, although uploads are averaged by samples.

A server that uses nothing but the weighted mean of uploads (`fl.api.WeightedAverage`) need not
hold them all at once. For an unweighted mean, a client divides its values by its number of samples,
and the server divides the mean by the mean of 1 / n: sum_k (n_k/N) (t_k/n_k) / sum_k (n_k/N)
(1/n_k) = mean_k t_k.
"""

from __future__ import annotations

from torch import Tensor

from fl.api import Tree, trees


def unweighted_upload(tree: Tree, samples: Tensor) -> Tree:
    """Return a client's upload of a tree; a client without samples has no weight."""
    share = 1 / samples.clamp(min=1).to(trees.leaves(tree)[0].dtype)
    return {"share": share, "values": trees.apply(lambda leaf: leaf * share, tree)}


def unweighted_mean(mean: Tree) -> Tree:
    """Return the unweighted mean of trees from the weighted mean of their `unweighted_upload`."""
    return trees.apply(lambda leaf: leaf / mean["share"], mean["values"])
