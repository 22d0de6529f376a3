"""Optimizers as pure functions over trees: elementwise, so they serve one client or a stack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fl.api import trees
from fl.api.training import Training
from fl.api.trees import Rate, Tree
from fl.pytorch import private

Leaves = tuple[Tensor, ...]


@dataclass(frozen=True)
class Optimizer:
    """``init(params) -> state`` and ``step(params, grads, state, lr) -> (params, state)``.

    What a step gives may lie where the gradients were, if they are `fl.api.trees.Scratch`.
    """

    init: Callable[[Tree], Tree]
    step: Callable[[Tree, Tree, Tree, Rate], tuple[Tree, Tree]]


def sgd(momentum: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False) -> Optimizer:
    """Stochastic gradient descent as `torch.optim.SGD` does it.

    g <- g + weight_decay w;  v <- momentum v + g;  w <- w - lr v, or with
    ``nesterov`` w <- w - lr (g + momentum v).
    """

    def init(params: Tree) -> Tree:
        return {"momentum": trees.zeros_like(params)} if momentum else {}

    def step(params: Tree, grads: Tree, state: Tree, lr: Rate) -> tuple[Tree, Tree]:
        weights, direction = tuple(trees.leaves(params)), tuple(trees.leaves(grads))
        free = _free(grads)
        if weight_decay:
            direction = _sum(direction, weights, weight_decay, free)
        new_state = {}
        if momentum:
            velocity = tuple(trees.leaves(state["momentum"]))
            if nesterov:
                velocity = private.add_each(direction, velocity, alpha=momentum)
                direction = _sum(direction, velocity, momentum, free)
            else:
                direction = velocity = _sum(direction, velocity, momentum, free)
                free = None
            new_state = {"momentum": trees.unflatten(params, velocity)}
        return trees.unflatten(params, _down(weights, direction, lr, free=free)), new_state

    return Optimizer(init, step)


def adam(weight_decay: float = 0.0) -> Optimizer:
    """Adam (Kingma and Ba, ICLR 2015) as `torch.optim.Adam` does it.

    g <- g + weight_decay w;  then as `adamw` without decay.
    """
    return adamw(weight_decay, decoupled=False)


def adamw(
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    decoupled: bool = True,
) -> Optimizer:
    """AdamW (Loshchilov and Hutter, ICLR 2019) as `torch.optim.AdamW` does it.

    w <- w - lr weight_decay w;  m, v: moving averages of g and g^2;
    w <- w - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps).
    Not ``decoupled``, it is `adam`.
    """
    first, second = betas

    def init(params: Tree) -> Tree:
        like = trees.leaves(params)[0]
        return {
            "mean": trees.zeros_like(params),
            "square": trees.zeros_like(params),
            "steps": like.new_zeros(()),
        }

    def step(params: Tree, grads: Tree, state: Tree, lr: Rate) -> tuple[Tree, Tree]:
        steps = state["steps"] + 1
        weights, gradients = tuple(trees.leaves(params)), tuple(trees.leaves(grads))
        if weight_decay and not decoupled:
            gradients = _sum(gradients, weights, weight_decay, _free(grads))
        mean = private.lerp_each(trees.leaves(state["mean"]), gradients, 1 - first)
        # In place where memory is fresh, which costs as much as the arithmetic.
        square = private.multiply_each(trees.leaves(state["square"]), second)
        private.addcmul_each_(square, gradients, gradients, value=1 - second)
        # The same for a whole client, so that one pass over its weights takes them in.
        grown = 1 - first**steps
        scale, least = grown / (1 - second**steps).sqrt(), grown * eps
        below = tuple(
            root.mul_(trees.align(scale, root)).add_(trees.align(least, root))
            for root in private.sqrt_each(square)
        )
        if weight_decay and decoupled:
            weights = _times(weights, 1 - lr * weight_decay)
        return trees.unflatten(params, _down(weights, mean, lr, below, _free(grads))), {
            "mean": trees.unflatten(params, mean),
            "square": trees.unflatten(params, square),
            "steps": steps,
        }

    return Optimizer(init, step)


def _free(grads: Tree) -> Leaves | None:
    """Memory for what a step gives: that of the gradients, if nobody reads them any more.

    They are still in the processor's cache, where fresh memory is not. On a GPU that matters less
    than one kernel for all leaves does.
    """
    memory = tuple(trees.leaves(grads)) if isinstance(grads, trees.Scratch) else ()
    return memory if memory and memory[0].device.type == "cpu" else None


def _down(
    weights: Leaves,
    direction: Leaves,
    lr: Rate,
    below: Leaves | None = None,
    free: Leaves | None = None,
) -> Leaves:
    """w - lr d, or w - lr d / below, in one pass over memory where the rate is a number."""
    if below and not isinstance(lr, Tensor):
        if free:
            return _written(free, torch.addcdiv, weights, direction, below, value=-lr)
        return private.addcdiv_each(weights, direction, below, value=-lr)
    if below:
        direction = private.divide_each(direction, below)
    if isinstance(lr, Tensor):
        return private.add_each(weights, _times(direction, -lr))
    return _sum(weights, direction, -lr, free)


def _times(leaves: Leaves, rate: Rate) -> Leaves:
    """Leaves times a rate, or each client's times its own."""
    if isinstance(rate, Tensor) and rate.dim():
        return tuple(leaf * trees.shaped(rate, leaf) for leaf in leaves)
    return private.multiply_each(leaves, rate)


def _sum(first: Leaves, second: Leaves, alpha: float, free: Leaves | None) -> Leaves:
    """first + alpha second."""
    if free:
        return _written(free, torch.add, first, second, alpha=alpha)
    return private.add_each(first, second, alpha=alpha)


def _written(
    free: Leaves, function: Callable[..., Tensor], *operands: Leaves, **options: float
) -> Leaves:
    """What a function gives of leaves, in free memory where that is laid out as the first one."""
    return tuple(
        function(*leaves, **options, out=place if place.stride() == leaves[0].stride() else None)
        for place, *leaves in zip(free, *operands, strict=True)
    )


def optimizer(training: Training) -> Optimizer:
    """The optimizer that a run's training settings ask for."""
    if training.optimizer == "adamw":
        return adamw(training.weight_decay)
    if training.optimizer == "adam":
        return adam(training.weight_decay)
    return sgd(training.momentum, training.weight_decay, training.nesterov)


def clipped(grads: Tree, norm: float | None, stacked: bool) -> Tree:
    """g min(1, norm / |g|), with |g| the l2-norm over all leaves; of each client for itself.

    Args:
        norm: None leaves gradients as they are.
        stacked: Whether the first dimension of all leaves is that of clients.
    """
    if norm is None:
        return grads
    squares = [_square(leaf, stacked) for leaf in trees.leaves(grads)]
    length = torch.stack(squares).sum(0).sqrt()
    share = norm / length.clamp(min=norm)
    return trees.apply(lambda leaf: leaf * trees.align(share, leaf), grads)


def _square(leaf: Tensor, stacked: bool) -> Tensor:
    """The sum of squares, [clients] of a stack."""
    return leaf.reshape(len(leaf), -1).square().sum(1) if stacked else leaf.square().sum()
