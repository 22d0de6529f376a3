"""Gradient matching: images whose gradient has the direction of a given one.

B. Zhao, K. R. Mopuri, H. Bilen. Dataset Condensation with Gradient Matching. ICLR 2021.
arXiv:2006.05929.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import Network, Tree, keyed, sgd, trees
from fl.blocks.distillation import gradient_distance

MATCHING_STREAM = keyed.stream_number("gradient matching")


def match_gradient(
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
    """Move images by ``steps`` steps so that their gradient approaches ``target``.

    The gradient is that of one cross-entropy over all classes, at ``variables``.
    `gradient_distance` compares it with the target.

    Args:
        network: The network.
        variables: Its parameters and buffers.
        images: The images to begin with, [n, channels, height, width].
        labels: Their classes, [n].
        target: The target gradient, a tree like the parameters.
        steps: The number of steps.
        lr: The learning rate.
        momentum: The momentum.
        key: A key, int64, for random numbers in the network.
    """
    optimizer = sgd(momentum)
    params: Tree = {"images": images}
    state = optimizer.init(params)
    weights = trees.apply(lambda leaf: leaf.detach().requires_grad_(), variables["params"])
    goal = trees.leaves(target)
    for step in range(steps):
        x = params["images"].detach().requires_grad_()
        keys = (
            keyed.derive_keys(key, MATCHING_STREAM)
            + step * len(x)
            + torch.arange(len(x), device=x.device)
        )
        with torch.enable_grad():
            output = network.train(weights, variables["buffers"], x, nested=True, key=keys)
            loss = F.cross_entropy(output.outputs, labels)
            grads = torch.autograd.grad(loss, trees.leaves(weights), create_graph=True)
            [grad] = torch.autograd.grad(gradient_distance(grads, goal), [x])
        with torch.no_grad():
            params, state = optimizer.step({"images": x}, {"images": grad}, state, lr)
    return params["images"].detach()
