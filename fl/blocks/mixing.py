"""Mixtures: every client's next model is a weighted mean of all models, by weights of its own.

A mixture is a row-stochastic matrix W, [K, K]: client i gets sum_j W_ij theta_j. For local training
W is the identity; for FedAvg all its K rows are equal.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fl.api import Tree, trees
from fl.blocks.distances import pairwise_distances

IDENTICAL_COSINE = 0.9
"""Cosines above this count as 1 in the released code of pFedGraph and FedSaC."""


def mix(weights: Tensor, tree: Tree) -> Tree:
    """Multiply W with a stacked tree, whose leaves are [K, ...]; integer leaves (counters) stay."""

    def combined(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        return torch.tensordot(weights.to(tensor.dtype), tensor, dims=1)

    return trees.apply(combined, tree)


def project_to_simplex(v: Tensor) -> Tensor:
    """Return the nearest point of the probability simplex for each row of ``v``, [..., K].

    It is argmin_p ||p - v||^2 with p >= 0 and sum p = 1: p = max(v - theta, 0), where theta is
    found by sorting (Held, Wolfe and Crowder 1974; Duchi et al. ICML 2008, figure 1).
    """
    v = v - v.amax(dim=-1, keepdim=True)  # It changes only the rounding of large numbers.
    ordered = v.sort(dim=-1, descending=True).values
    counts = torch.arange(1, v.shape[-1] + 1, device=v.device, dtype=v.dtype)
    thresholds = (ordered.cumsum(dim=-1) - 1) / counts
    # At least one, also if a run has diverged to numbers that do not compare.
    support = (ordered > thresholds).sum(dim=-1, keepdim=True).clamp(min=1)
    return (v - thresholds.gather(-1, support - 1)).clamp(min=0)


def pfedgraph_weights(fractions: Tensor, similarity: Tensor, lam: float) -> Tensor:
    """Collaboration graph of pFedGraph, [K, K] (Ye et al. ICML 2023, equation 6).

    Row i minimises ||w - fractions||^2 - (1/lam) <w, similarity_i> over the simplex, that is
    ``project(fractions + similarity_i / (2 lam))``.

    Args:
        fractions: The share of each client in the samples, [K].
        similarity: Cosines between the clients' models, [K, K].
        lam: The weight of the fractions.
    """
    return project_to_simplex(fractions + similarity / (2 * lam))


def fedsac_weights(
    fractions: Tensor, similarity: Tensor, complementarity: Tensor, alpha: float, beta: float
) -> Tensor:
    """Cooperation network of FedSaC, [K, K] (Yan et al. ICML 2024, equation 8).

    Row i minimises ||w - fractions||^2 + alpha <w, complementarity_i> - beta <w, similarity_i> over
    the simplex.

    Args:
        fractions: The share of each client in the samples, [K].
        similarity: Cosines between the clients' models, [K, K].
        complementarity: Similarity of the subspaces of features, [K, K], see
            `fl.blocks.subspaces.complementarity`.
        alpha: The weight of complementarity.
        beta: The weight of similarity.
    """
    return project_to_simplex(fractions - alpha / 2 * complementarity + beta / 2 * similarity)


def saturate_above(similarity: Tensor, bound: float) -> Tensor:
    """Replace similarities above ``bound`` by 1."""
    return torch.where(similarity > bound, 1.0, similarity)


def cosines(tree: Tree) -> Tensor:
    """Cosine similarities between the clients of a stacked tree, [K, K], in double precision."""
    unit = torch.nn.functional.normalize(client_rows(tree), dim=1)
    return unit @ unit.T


def squared_distances(tree: Tree) -> Tensor:
    """Squared distances between the clients of a stacked tree, [K, K], in double precision."""
    rows = client_rows(tree)
    return pairwise_distances(rows, rows)


def client_rows(tree: Tree) -> Tensor:
    """Flatten a stacked tree to one row for each client, [K, d], in double precision."""
    return torch.cat([leaf.flatten(1) for leaf in trees.leaves(tree)], dim=1).double()


def unit_directions(tree: Tree) -> Tree:
    """Divide each client's leaves in a stacked tree by their common norm."""
    rows = torch.cat([leaf.flatten(1) for leaf in trees.leaves(tree)], dim=1)
    length = rows.norm(dim=1).clamp(min=torch.finfo(rows.dtype).tiny)
    return trees.apply(lambda leaf: leaf / trees.align(length, leaf), tree)
