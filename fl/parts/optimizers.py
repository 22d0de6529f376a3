"""Optimizers as pure functions over trees: elementwise, so they serve one client or a stack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fl import trees
from fl.pytorch import private
from fl.training import Training
from fl.trees import Rate, Tree


@dataclass(frozen=True)
class Optimizer:
    """``init(params) -> state`` and ``step(params, grads, state, lr) -> (params, state)``."""

    init: Callable[[Tree], dict[str, Any]]
    step: Callable[[Tree, Tree, Tree, Rate], tuple[dict[str, Any], dict[str, Any]]]


def sgd(momentum: float = 0.0, weight_decay: float = 0.0) -> Optimizer:
    """Stochastic gradient descent as `torch.optim.SGD` does it.

    g <- g + weight_decay w;  v <- momentum v + g;  w <- w - lr v.
    """

    def init(params: Tree) -> dict[str, Any]:
        return {"momentum": trees.zeros_like(params)} if momentum else {}

    def step(
        params: Tree, grads: Tree, state: Tree, lr: Rate
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        weights, direction = tuple(trees.leaves(params)), tuple(trees.leaves(grads))
        if weight_decay:
            direction = private.add_each(direction, weights, alpha=weight_decay)
        new_state = {}
        if momentum:
            velocity = private.multiply_each(trees.leaves(state["momentum"]), momentum)
            direction = private.add_each(velocity, direction)
            new_state = {"momentum": trees.unflatten(params, direction)}
        moves = private.multiply_each(direction, -lr)
        return trees.unflatten(params, private.add_each(weights, moves)), new_state

    return Optimizer(init, step)


def adamw(
    weight_decay: float = 0.0, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
) -> Optimizer:
    """AdamW (Loshchilov and Hutter, ICLR 2019) as `torch.optim.AdamW` does it.

    w <- w - lr weight_decay w;  m, v: moving averages of g and g^2;
    w <- w - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps).
    """
    first, second = betas

    def init(params: Tree) -> dict[str, Any]:
        like = trees.leaves(params)[0]
        return {
            "mean": trees.zeros_like(params),
            "square": trees.zeros_like(params),
            "steps": like.new_zeros(()),
        }

    def step(
        params: Tree, grads: Tree, state: Tree, lr: Rate
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        steps = state["steps"] + 1
        mean = trees.apply(lambda m, g: first * m + (1 - first) * g, state["mean"], grads)
        square = trees.apply(lambda v, g: second * v + (1 - second) * g * g, state["square"], grads)

        def move(w: Tensor, m: Tensor, v: Tensor) -> Tensor:
            t = trees.align(steps, w)
            scale = (v / (1 - second**t)).sqrt() + eps
            return w * (1 - lr * weight_decay) - lr * (m / (1 - first**t)) / scale

        new = trees.apply(move, params, mean, square)
        return new, {"mean": mean, "square": square, "steps": steps}

    return Optimizer(init, step)


def optimizer(training: Training) -> Optimizer:
    """The optimizer that a run's training settings ask for."""
    if training.optimizer == "adamw":
        return adamw(training.weight_decay)
    return sgd(training.momentum, training.weight_decay)
