"""Loss terms. A method's objective is a sum of them.

A term is a function of one client's forward pass; `fl.recipe.recipe` takes a tuple of terms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from fl import trees
from fl.fields import NonNegative
from fl.method import Batch
from fl.trees import Tree


@dataclass(frozen=True)
class Forward:
    """What a term may look at.

    outputs: the network's outputs on the batch, [b, classes].
    params: the weights being trained; start: the server's, as they were sent this round (without
    those that stay local).
    batch: the samples, see `fl.method.Batch`.
    """

    outputs: Tensor
    params: Tree
    start: Tree
    batch: Batch


Term = Callable[[Forward], Tensor]


def cross_entropy(forward: Forward) -> Tensor:
    """sum_i w_i CE(z_i, y_i) / sum_i w_i, the weighted mean over the batch."""
    weight = forward.batch["weight"]
    losses = F.cross_entropy(forward.outputs, forward.batch["y"], reduction="none")
    return (losses * weight).sum() / weight.sum()


def proximal(mu: NonNegative) -> Term:
    """(mu/2) ||w - w_start||^2 over the shared parameters (FedProx, equation 2)."""

    def term(forward: Forward) -> Tensor:
        shared = {name: forward.params[name] for name in forward.start}
        return mu / 2 * trees.squared_distance(shared, forward.start)

    return term
