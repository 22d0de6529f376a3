from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fl.api import trees
from fl.api.optimizers import Optimizer, adam, adamw, sgd

STEPS = 20
CASES: dict[str, tuple[Optimizer, Any]] = {
    "sgd": (sgd(), lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": (sgd(0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "decay": (sgd(0.0, 0.2), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.2)),
    "both": (
        sgd(0.9, 0.2),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.2),
    ),
    "adam": (adam(0.2), lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.2)),
    "adamw": (adamw(0.0), lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.0)),
    "adamw decay": (adamw(0.2), lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.2)),
}


def params(seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(4, 3, generator=draw, dtype=torch.float64),
        "b": torch.randn(3, generator=draw, dtype=torch.float64),
    }


def rate(step: int) -> float:
    return 0.1 / (1 + step)


def gradient(tree: trees.Tree, step: int) -> dict[str, Tensor]:
    """Of a function that changes from step to step: elementwise, so it serves a stack too."""
    return trees.apply(lambda t: torch.sin(3 * t + step) + 0.1 * t, tree)


def ours(made: Optimizer, tree: trees.Tree, steps: int = STEPS) -> tuple[Any, Any]:
    state = made.init(tree)
    for step in range(steps):
        tree, state = made.step(tree, gradient(tree, step), state, rate(step))
    return tree, state


@pytest.mark.parametrize("name", CASES)
def test_twenty_steps_are_those_of_torch(name: str) -> None:
    made, torchs = CASES[name]
    found, _ = ours(made, params(0))
    leaves = {key: t.clone().requires_grad_() for key, t in params(0).items()}
    reference = torchs(leaves.values())
    for step in range(STEPS):
        for group in reference.param_groups:
            group["lr"] = rate(step)
        for key, grad in gradient({k: t.detach() for k, t in leaves.items()}, step).items():
            leaves[key].grad = grad
        reference.step()
    for key, leaf in leaves.items():
        torch.testing.assert_close(found[key], leaf.detach(), rtol=0, atol=1e-13)
        assert (found[key] - params(0)[key]).abs().min() > 1e-3


@pytest.mark.parametrize("name", CASES)
def test_a_stack_is_its_clients_one_by_one(name: str) -> None:
    """Even where they have taken different numbers of steps before."""
    made, _ = CASES[name]
    begun = [ours(made, params(seed), steps) for seed, steps in ((0, 0), (1, 3), (2, 11))]
    state = trees.stack([s for _, s in begun])
    tree = trees.stack([p for p, _ in begun])
    for step in range(5):
        tree, state = made.step(tree, gradient(tree, step), state, 0.05)
    for row, (alone, own) in enumerate(begun):
        for step in range(5):
            alone, own = made.step(alone, gradient(alone, step), own, 0.05)
        for stacked, single in ((tree, alone), (state, own)):
            pairs = zip(trees.leaves(trees.take(stacked, row)), trees.leaves(single), strict=True)
            for a, b in pairs:
                torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", CASES)
def test_gradients_that_nobody_reads_any_more_give_their_memory(name: str) -> None:
    made, _ = CASES[name]
    before, state = ours(made, params(0), 3)
    expected = made.step(before, gradient(before, 3), state, 0.1)
    grads = trees.Scratch(gradient(before, 3))
    places = {leaf.data_ptr() for leaf in grads.values()}
    found = made.step(before, grads, state, 0.1)
    for one, other in zip(found, expected, strict=True):
        pairs = zip(trees.leaves(one), trees.leaves(other), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    assert places <= {leaf.data_ptr() for tree in found for leaf in trees.leaves(tree)}
