"""Optimizers as pure, elementwise functions over trees, for one client or a stack of clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fl.api import trees
from fl.api.training import Training
from fl.api.trees import AnyTree, Rate, Tree
from fl.pytorch import torch_internals

Leaves = tuple[Tensor, ...]


class OptimizerStep(Protocol):
    """Step of an optimizer."""

    def __call__(
        self, params: AnyTree, grads: Tree, state: Tree, lr: Rate, /
    ) -> tuple[AnyTree, Tree]:
        """Return the next parameters and the next state.

        Args:
            params: The parameters.
            grads: Gradients of the same structure.
            state: The optimizer's state.
            lr: Learning rate.
        """


@dataclass(frozen=True)
class Optimizer:
    """Optimizer: ``init(params) -> state``, ``step(params, grads, state, lr) -> (params, state)``.

    If gradients are `fl.api.trees.Scratch`, the results of a step may use their memory, and with
    `in_place` that of the parameters and the state.
    """

    init: Callable[[Tree], Tree]
    step: OptimizerStep


def sgd(momentum: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False) -> Optimizer:
    """Return stochastic gradient descent, equal to `torch.optim.SGD`.

    g <- g + weight_decay w;  v <- momentum v + g;  w <- w - lr v, or with
    ``nesterov`` w <- w - lr (g + momentum v).
    """

    def init(params: Tree) -> Tree:
        return {"momentum": trees.zeros_like(params)} if momentum else {}

    def step_in_place(weights: Leaves, direction: Leaves, velocity: Leaves, lr: float) -> None:
        # PyTorch's fused step is a twelfth of a training step faster. But its last numbers, which
        # fill no vector, round otherwise, so that they would depend on the size of the stack.
        if weight_decay:
            torch_internals.add_lists_(direction, weights, alpha=weight_decay)
        if momentum:
            for slope, leaf in zip(direction, velocity, strict=True):
                torch.add(slope, leaf, alpha=momentum, out=leaf)
            if nesterov:
                torch_internals.add_lists_(direction, velocity, alpha=momentum)
        steps = velocity if momentum and not nesterov else direction
        torch_internals.add_lists_(weights, steps, alpha=-lr)

    def step(params: AnyTree, grads: Tree, state: Tree, lr: Rate) -> tuple[AnyTree, Tree]:
        weights, direction = tuple(trees.leaves(params)), tuple(trees.leaves(grads))
        velocity = tuple(trees.leaves(state))
        if _is_in_place(weights, direction, velocity, grads, lr):
            weights = tuple(weight.detach() for weight in weights)
            step_in_place(weights, direction, velocity, float(lr))
            return trees.unflatten(params, weights), state
        free = _free(grads)
        if weight_decay:
            direction = _sum(direction, weights, weight_decay, free)
        new_state = {}
        if momentum:
            if nesterov:
                velocity = torch_internals.add_lists(direction, velocity, alpha=momentum)
                direction = _sum(direction, velocity, momentum, free)
            else:
                direction = velocity = _sum(direction, velocity, momentum, free)
                free = None
            new_state = {"momentum": trees.unflatten(params, velocity)}
        return trees.unflatten(params, _down(weights, direction, lr, free=free)), new_state

    return Optimizer(init, step)


def adam(weight_decay: float = 0.0) -> Optimizer:
    """Return Adam (Kingma and Ba, ICLR 2015), equal to `torch.optim.Adam`.

    g <- g + weight_decay w;  then as `adamw` without decay.
    """
    return adamw(weight_decay, decoupled=False)


def adamw(
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    decoupled: bool = True,
) -> Optimizer:
    """Return AdamW (Loshchilov and Hutter, ICLR 2019), equal to `torch.optim.AdamW`.

    w <- w - lr weight_decay w;  m, v: moving averages of g and g^2;
    w <- w - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps).
    Without ``decoupled``, it is `adam`.
    """
    first, second = betas

    def init(params: Tree) -> Tree:
        return {
            "mean": trees.zeros_like(params),
            "square": trees.zeros_like(params),
            "steps": trees.leaves(params)[0].new_zeros(()),
        }

    def step(params: AnyTree, grads: Tree, state: Tree, lr: Rate) -> tuple[AnyTree, Tree]:
        steps = state["steps"] + 1
        weights, gradients = tuple(trees.leaves(params)), tuple(trees.leaves(grads))
        if weight_decay and not decoupled:
            gradients = _sum(gradients, weights, weight_decay, _free(grads))
        mean = torch_internals.lerp_lists(trees.leaves(state["mean"]), gradients, 1 - first)
        # In place where memory is fresh, which costs as much as the arithmetic.
        square = torch_internals.multiply_lists(trees.leaves(state["square"]), second)
        torch_internals.addcmul_lists_(square, gradients, gradients, value=1 - second)
        # Factors of a whole client, so that one pass over its weights applies them.
        correction = 1 - first**steps
        scale, floor = correction / (1 - second**steps).sqrt(), correction * eps
        divisor = tuple(
            root.mul_(trees.align(scale, root)).add_(trees.align(floor, root))
            for root in torch_internals.sqrt_lists(square)
        )
        if weight_decay and decoupled:
            weights = _times(weights, 1 - lr * weight_decay)
        return trees.unflatten(params, _down(weights, mean, lr, divisor, _free(grads))), {
            "mean": trees.unflatten(params, mean),
            "square": trees.unflatten(params, square),
            "steps": steps,
        }

    return Optimizer(init, step)


def _is_in_place(
    weights: Leaves, grads: Leaves, state: Sequence[Tensor], tree: Tree, lr: Rate
) -> bool:
    """Whether a step may be made in place, for leaves of the same memory layout."""
    if not isinstance(tree, trees.Scratch) or not tree.in_place or isinstance(lr, Tensor):
        return False
    layouts = [leaf.stride() for leaf in weights]
    others = (grads, state) if state else (grads,)
    return all([leaf.stride() for leaf in leaves] == layouts for leaves in others)


def _free(grads: Tree) -> Leaves | None:
    """Return the memory of the gradients for the results of a step, if it may be overwritten.

    This memory is still in the processor's cache, but new memory is not. On a GPU, one kernel for
    all leaves matters more.
    """
    memory = tuple(trees.leaves(grads)) if isinstance(grads, trees.Scratch) else ()
    return memory if memory and memory[0].device.type == "cpu" else None


def _down(
    weights: Leaves,
    direction: Leaves,
    lr: Rate,
    divisor: Leaves | None = None,
    free: Leaves | None = None,
) -> Leaves:
    """Return w - lr d, or w - lr d / divisor, in one pass over memory if the rate is a number."""
    if divisor and not isinstance(lr, Tensor):
        if free:
            return _written(free, torch.addcdiv, weights, direction, divisor, value=-lr)
        return torch_internals.addcdiv_lists(weights, direction, divisor, value=-lr)
    if divisor:
        direction = torch_internals.divide_lists(direction, divisor)
    if isinstance(lr, Tensor):
        return torch_internals.add_lists(weights, _times(direction, -lr))
    return _sum(weights, direction, -lr, free)


def _times(leaves: Leaves, rate: Rate) -> Leaves:
    """Return leaves times a rate, or times each client's rate."""
    if isinstance(rate, Tensor) and rate.dim():
        return tuple(leaf * trees.align_rate(rate, leaf) for leaf in leaves)
    return torch_internals.multiply_lists(leaves, rate)


def _sum(first: Leaves, second: Leaves, alpha: float, free: Leaves | None) -> Leaves:
    """Return first + alpha second."""
    if free:
        return _written(free, torch.add, first, second, alpha=alpha)
    return torch_internals.add_lists(first, second, alpha=alpha)


def _written(
    free: Leaves, function: Callable[..., Tensor], *operands: Leaves, **options: float
) -> Leaves:
    """Return a function of leaves, in free memory if that has the layout of the first one."""
    return tuple(
        function(*leaves, **options, out=memory if memory.stride() == leaves[0].stride() else None)
        for memory, *leaves in zip(free, *operands, strict=True)
    )


def optimizer(training: Training) -> Optimizer:
    """Return the optimizer of a run's training settings."""
    if training.optimizer == "adamw":
        return adamw(training.weight_decay)
    if training.optimizer == "adam":
        return adam(training.weight_decay)
    return sgd(training.momentum, training.weight_decay, training.nesterov)


def clipped(grads: Tree, norm: float | None, stacked: bool) -> Tree:
    """Return g min(1, norm / |g|) of each client, with |g| the l2-norm over all its leaves.

    Args:
        grads: The gradients g.
        norm: Largest norm; None: gradients stay as they are.
        stacked: Whether the first dimension of all leaves is that of clients.
    """
    if norm is None:
        return grads
    squares = [_square(leaf, stacked) for leaf in trees.leaves(grads)]
    length = torch.stack(squares).sum(0).sqrt()
    share = norm / length.clamp(min=norm)
    return trees.apply(lambda leaf: leaf * trees.align(share, leaf), grads)


def _square(leaf: Tensor, stacked: bool) -> Tensor:
    """Return the sum of squares, [clients] for a stack."""
    return leaf.reshape(len(leaf), -1).square().sum(1) if stacked else leaf.square().sum()
