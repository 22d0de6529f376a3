"""The last linear layer of a network, the classifier, as tensors."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from fl.api import Network, Tree, trees


def head_of(network: Network, params: Tree) -> Tree:
    """The classifier's ``weight`` [classes, d] and, where it has one, its ``bias`` [classes]."""
    names = [name for name in network.names["params"] if name in network.head]
    return {name.rpartition(".")[2]: params[name] for name in names}


def blank_head(network: Network, params: Tree) -> Tree:
    """A classifier of the same shape, all zeros."""
    return trees.zeros_like(head_of(network, params))


def outputs(head: Tree, features: Tensor) -> Tensor:
    """[b, classes] of features [b, ...]."""
    return F.linear(features.flatten(1), head["weight"], head.get("bias"))


def width(network: Network, params: Tree) -> int:
    """How many features go into the classifier."""
    return int(head_of(network, params)["weight"].shape[1])
