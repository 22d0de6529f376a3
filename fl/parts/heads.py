"""The last linear layer of a network, the classifier, as tensors."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from fl.api import trees
from fl.api.network import Network
from fl.api.trees import Tree


def head_of(network: Network, params: Tree) -> dict[str, Any]:
    """The classifier's ``weight`` [classes, d] and, where it has one, its ``bias`` [classes]."""
    names = [name for name in network.names["params"] if name in network.head]
    return {name.rpartition(".")[2]: params[name] for name in names}


def blank_head(network: Network, params: Tree) -> dict[str, Any]:
    """A classifier of the same shape, all zeros."""
    return trees.zeros_like(head_of(network, params))


def outputs(head: Tree, features: Tensor) -> Tensor:
    """[b, classes] of features [b, ...]."""
    return F.linear(features.flatten(1), head["weight"], head.get("bias"))


def width(network: Network, params: Tree) -> int:
    """How many features go into the classifier."""
    return int(head_of(network, params)["weight"].shape[1])
