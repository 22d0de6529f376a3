"""Alignment of weights: cosines between a client's model and others."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import Forward, Term, trees


def alignment(weight: float, toward: str) -> Term:
    """-weight cos(w, w_0), with w_0 the parameters that the method keeps in ``work[toward]``."""

    def term(forward: Forward) -> Tensor:
        return -weight * F.cosine_similarity(*_beside(forward, toward), dim=0)

    return term


def inclination(weight: float, toward: str) -> Term:
    """-weight <w, v>/|w|, with v the tree that the method keeps in ``work[toward]``.

    Where v is a sum of a_j w_j/|w_j|, this is the sum of -weight a_j cos(w, w_j). Where v is 0, it
    is 0.
    """

    def term(forward: Forward) -> Tensor:
        weights, other = _beside(forward, toward)
        return -weight * F.normalize(weights, dim=0) @ other

    return term


def _beside(forward: Forward, toward: str) -> tuple[Tensor, Tensor]:
    """The parameters of the pass and those in ``work[toward]``, each in one row."""
    weights = torch.cat([forward.params[name].flatten() for name in forward.work[toward]])
    return weights, torch.cat([leaf.flatten() for leaf in trees.leaves(forward.work[toward])])
