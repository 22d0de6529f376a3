"""Training of a few weights by the server, on class statistics that clients uploaded."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fl.api import AnyTree, BuildContext, sgd, trees
from fl.blocks.anchors import Anchors


def descend(
    params: AnyTree, loss: Callable[[AnyTree], Tensor], steps: int, lr: float, momentum: float = 0.0
) -> AnyTree:
    """Return parameters after steps of gradient descent on a loss.

    Args:
        params: The parameters.
        loss: Function from parameters to a scalar.
        steps: Number of steps.
        lr: Learning rate.
        momentum: Momentum of the steps, which starts anew with each call.
    """
    optimizer = sgd(momentum, 0.0)
    state = optimizer.init(params)
    for _ in range(steps):
        gradient = _gradient(loss, params)
        with torch.no_grad():
            params, state = optimizer.step(params, gradient, state, lr)
    return params


def _gradient(loss: Callable[[AnyTree], Tensor], params: AnyTree) -> AnyTree:
    """Return the gradient of a loss at parameters."""
    with torch.enable_grad():
        leaves = [leaf.detach().requires_grad_() for leaf in trees.leaves(params)]
        gradients = torch.autograd.grad(loss(trees.unflatten(params, leaves)), leaves)
    return trees.unflatten(params, gradients)


def labels_of_means(uploads: Anchors) -> tuple[Tensor, Tensor]:
    """Return the class of each class mean of a stack of clients, and its weight, both [K C].

    A class that a client does not hold has weight 0, any other mean 1.

    Args:
        uploads: ``counts`` [K, C], as `fl.blocks.anchors.local_anchors` makes them.
    """
    counts = uploads["counts"]
    labels = torch.arange(counts.shape[1], device=counts.device).repeat(counts.shape[0])
    return labels, (counts > 0).flatten().to(counts.dtype)


def empty_class_means(context: BuildContext, example: Tensor) -> Anchors:
    """Return uploads of the size of a round's, so that the work on them can be counted.

    Args:
        context: The context in which the method is built.
        example: A tensor [C, d] of one value for each class and feature.
    """
    clients = context.training.participants(context.participants)
    class_means = example.new_zeros((clients, *example.shape))
    return {"means": class_means, "counts": class_means[..., 0]}
