"""Matrices of low rank in place of weights, with a share of the energy of all singular values."""

from __future__ import annotations

import torch
from torch import Tensor

from fl.api import Tree, trees


def low_rank(tree: Tree, energy: Tensor) -> Tree:
    """Return a tree whose weights are replaced by matrices of the smallest rank with this energy.

    The energy of a matrix is the sum of its squared singular values. A weight of more dimensions is
    the matrix [outputs, all others]. Leaves of one dimension, such as biases, stay.

    Args:
        tree: Parameters of one model, or changes of them.
        energy: Share of the energy that is kept, above 0 and at most 1, a scalar.
    """
    return trees.apply(lambda leaf: truncated(leaf, energy) if leaf.dim() > 1 else leaf, tree)


def truncated(tensor: Tensor, energy: Tensor) -> Tensor:
    """Return a weight with the largest singular values alone; NaN if it is not finite."""
    matrix = tensor.flatten(1)
    is_finite = matrix.isfinite().all()
    u, values, v = torch.linalg.svd(torch.where(is_finite, matrix, 0), full_matrices=False)
    # What is left out is compared, since a sum that is nearly the whole would round.
    remainder = values.square().flip(-1).cumsum(-1).flip(-1)
    largest = values * (remainder > (1 - energy.to(values.dtype)) * remainder[:1])
    return torch.where(is_finite, (u * largest) @ v, torch.nan).reshape(tensor.shape)
