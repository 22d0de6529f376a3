"""Gradient matching: images whose gradient points where a given one does.

B. Zhao, K. R. Mopuri, H. Bilen. Dataset Condensation with Gradient Matching. ICLR 2021.
arXiv:2006.05929.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fl import keyed, trees
from fl.network import Network
from fl.parts.distillation import gradient_distance
from fl.parts.optimizers import sgd
from fl.trees import Tree

STREAM = keyed.stream_of("gradient matching")


def matched(
    network: Network,
    variables: Tree,
    images: Tensor,
    labels: Tensor,
    target: Tree,
    *,
    steps: int,
    lr: float,
    momentum: float,
    key: Tensor,
) -> Tensor:
    """Images after so many steps towards the gradient ``target``, a tree as the parameters are.

    All classes are in one cross-entropy, whose gradient at ``variables`` is held to the target by
    `gradient_distance`. key: int64, of what is random in the network.
    """
    optimizer = sgd(momentum)
    params = {"images": images}
    state = optimizer.init(params)
    weights = trees.apply(lambda leaf: leaf.detach().requires_grad_(), variables["params"])
    goal = trees.leaves(target)
    for step in range(steps):
        x = params["images"].detach().requires_grad_()
        keys = keyed.derived(key, STREAM) + step * len(x) + torch.arange(len(x), device=x.device)
        with torch.enable_grad():
            passed = network.train(weights, variables["buffers"], x, nested=True, key=keys)
            loss = F.cross_entropy(passed.outputs, labels)
            grads = torch.autograd.grad(loss, trees.leaves(weights), create_graph=True)
            [grad] = torch.autograd.grad(gradient_distance(grads, goal), [x])
        with torch.no_grad():
            params, state = optimizer.step({"images": x}, {"images": grad}, state, lr)
    return params["images"].detach()
