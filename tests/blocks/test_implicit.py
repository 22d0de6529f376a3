"""The hypergradient on losses whose solution is known on paper."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fl.api import trees
from fl.api.trees import Tree
from fl.blocks.implicit_gradients import hypergradient

H = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
B = torch.tensor([[1.0, -2.0, 0.3], [0.4, 0.7, -1.1]], dtype=torch.float64)
PARAMS = {"a": torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64)}
BEST = torch.linalg.solve(H, B @ PARAMS["a"])
"""Where (1/2) w'H w - w'B a is least."""


def training(weights: Tree, params: Tree) -> Tensor:
    w = weights["w"]
    return w @ H @ w / 2 - w @ B @ params["a"]


def validation(weights: Tree, params: Tree) -> Tensor:
    return (weights["w"] - 1).square().sum() + params["a"].pow(3).sum()


def test_a_long_series_times_psi_is_the_derivative_of_the_solution() -> None:
    v = 2 * (BEST - 1)
    direct = 3 * PARAMS["a"].square()
    found = hypergradient(training, validation, {"w": BEST}, PARAMS, psi=0.1, terms=2000)["a"]
    # L_V at w*(a) = H^-1 B a has the gradient  3 a^2 + B' H^-1 v.
    torch.testing.assert_close(0.1 * (found - direct), B.T @ torch.linalg.solve(H, v))


@pytest.mark.parametrize("terms", [0, 1, 3])
def test_a_short_series_is_the_sum_that_it_says(terms: int) -> None:
    v = 2 * (BEST - 1)
    step = torch.eye(2, dtype=torch.float64) - 0.3 * H
    p = torch.stack([v @ torch.linalg.matrix_power(step, j) for j in range(terms + 1)]).sum(0)
    expected = 3 * PARAMS["a"].square() + p @ B
    found = hypergradient(training, validation, {"w": BEST}, PARAMS, psi=0.3, terms=terms)["a"]
    torch.testing.assert_close(found, expected)


def deep(weights: Tree, params: Tree, x: Tensor) -> Tensor:
    hidden = torch.tanh(x @ weights["in"]["w"]) * params["scale"]
    return (hidden @ weights["out"]).pow(4).mean() + params["decay"] * weights["out"].square().sum()


def tree(draw: torch.Generator) -> tuple[dict[str, Any], dict[str, Any], Tensor]:
    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    weights = {"in": {"w": drawn(3, 4)}, "out": drawn(4)}
    return weights, {"scale": drawn(4), "decay": drawn()}, drawn(5, 3)


def test_trees_of_any_shape_follow_a_hessian_that_is_written_out() -> None:
    weights, params, x = tree(torch.Generator().manual_seed(1))
    names = trees.leaves(weights)

    def flat(loss_of: Any, flat_weights: Tensor, flat_params: Tensor) -> Tensor:
        parts = flat_weights.split([leaf.numel() for leaf in names])
        shaped = [part.reshape(leaf.shape) for part, leaf in zip(parts, names, strict=True)]
        return loss_of(
            trees.unflatten(weights, shaped), {"scale": flat_params[:4], "decay": flat_params[4]}
        )

    def train(w: Tree, a: Tree) -> Tensor:
        return deep(w, a, x)

    def judge(w: Tree, a: Tree) -> Tensor:
        return deep(w, a, x.flip(0) + 1)

    w = torch.cat([leaf.flatten() for leaf in names])
    a = torch.cat([params["scale"], params["decay"].reshape(1)])
    both = torch.autograd.functional.hessian(lambda w, a: flat(train, w, a), (w, a))
    v, direct = torch.autograd.functional.jacobian(lambda w, a: flat(judge, w, a), (w, a))
    p = term = v
    for _ in range(2):
        term = term - 0.2 * term @ both[0][0]
        p = p + term
    expected = direct - p @ both[0][1]
    found = hypergradient(train, judge, weights, params, psi=0.2, terms=2)
    torch.testing.assert_close(found["scale"], expected[:4])
    torch.testing.assert_close(found["decay"], expected[4])
