"""Gradients that are computed by hand are those of autograd."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import worlds
from torch import nn
from worlds import world

from fl.api import Forward, cross_entropy, task_loss, trees
from fl.api.method import BuildContext, Pass
from fl.api.network import Network
from fl.api.protocols import stack_gradients_of
from fl.api.recipes import recipe
from fl.api.tasks.classification import (
    CLASS_WEIGHT,
    SMOOTHING,
    classification_loss,
    loss_gradient,
)
from fl.api.training import Training
from fl.blocks.proximal import ProximalTerm
from fl.pytorch.layer_sequence import LayerSequence


def by_autograd(simulation: Any) -> Any:
    """The same run, whose losses have no gradients by hand."""

    def plain(pass_: Any) -> Any:
        if not isinstance(pass_, Pass):
            return pass_
        return replace(pass_, loss=lambda *arguments: pass_.loss(*arguments))

    method = simulation.method
    return replace(simulation, method=replace(method, passes=tuple(map(plain, method.passes))))


@pytest.mark.parametrize(
    "options",
    [
        {"method": "fedavg"},
        {"method": "fedavg", "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"method": "fedavg", "optimizer": "adam", "clip_norm": 0.5},
        {"method": "fedavg", "class_weights": "balanced"},
        {"method": "fedavg", "label_smoothing": 0.1},
        {"method": "fedprox"},
        {"method": "ditto", "momentum": 0.5},
        {"method": "fedrep"},
        {"method": "mrmtl"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_runs_are_those_of_autograd(options: dict[str, Any]) -> None:
    simulation = world(model="mlp", **options)
    assert any(stack_gradients_of(p.loss) for p in simulation.method.passes if isinstance(p, Pass))
    found, rows = worlds.run(simulation, "stacked")
    expected, expected_rows = worlds.run(by_autograd(simulation), "stacked")
    assert worlds.distance(worlds.tree(found), worlds.tree(expected)) < 1e-12
    assert worlds.rows_agree(rows, expected_rows, 1e-12)


def test_other_terms_and_other_networks_are_left_to_autograd() -> None:
    context = BuildContext(
        Network(lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), torch.float64),
        Training(),
        2,
        3,
    )

    def length(forward: Forward) -> Any:
        return forward.output.features.square().mean()

    for terms in ((cross_entropy,), (task_loss, length)):
        assert stack_gradients_of(recipe(context, terms=terms).passes[0].loss) is None
    for terms in ((task_loss,), (task_loss, ProximalTerm(0.1))):
        assert stack_gradients_of(recipe(context, terms=terms).passes[0].loss)


def twice() -> nn.Module:
    layer = nn.Linear(5, 5)
    return nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer, nn.Linear(5, 3, bias=False))


@pytest.mark.parametrize("frozen", [[], ["1.weight"], ["4.weight", "1.bias"]])
def test_gradients_of_a_sequence_are_those_of_autograd(frozen: list[str]) -> None:
    """With a layer that is called twice, no bias, and weights that are not trained."""
    network = Network(twice, torch.float64)
    stack = trees.stack([network.init(seed) for seed in range(3)])["params"]
    x = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    leaves = {name: w.clone().requires_grad_() for name, w in stack.items()}
    trained = {name: leaf for name, leaf in leaves.items() if name not in frozen}
    expected = []
    for client in range(3):
        output = network.train(trees.take(leaves, client), {}, x[client]).outputs
        expected.append(output.square().sum())
    slopes = torch.autograd.grad(torch.stack(expected).sum(), [*trained.values()])

    def loss(outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return outputs.square().sum((1, 2)), 2 * outputs

    params = {name: stack[name] for name in trained}
    with torch.no_grad():
        found = network.stack_gradients(params, {n: stack[n] for n in frozen}, x, loss)
    assert found is not None
    torch.testing.assert_close(found[0], torch.stack(expected).detach())
    assert [*found[1]] == [*params]
    for slope, own in zip(slopes, found[1].values(), strict=True):
        torch.testing.assert_close(own, slope)


def test_gradients_of_neighbouring_layers_can_be_differentiated_again() -> None:
    sequence = LayerSequence.from_module(
        nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double(), False
    )
    assert sequence is not None
    [dense] = sequence._steps
    draw = torch.Generator().manual_seed(0)
    shapes = ((2, 5, 3), (2, 4, 3), (2, 4), (2, 2, 4), (2, 2))
    tensors = [torch.randn(*s, dtype=torch.float64, generator=draw) for s in shapes]

    def outputs(x: Any, *variables: Any) -> Any:
        first, second = dense._linear  # type: ignore[union-attr]
        for layer, (weight, bias) in zip(
            (first, second), (variables[:2], variables[2:]), strict=True
        ):
            layer._parameters["weight"], layer._parameters["bias"] = weight, bias
        found, inputs = dense.outputs(x)  # type: ignore[union-attr]
        return found, inputs[second]

    leaves = tuple(tensor.requires_grad_() for tensor in tensors)
    assert torch.autograd.gradcheck(outputs, leaves)
    assert torch.autograd.gradgradcheck(outputs, leaves)


@pytest.mark.parametrize("has_class_weights", [False, True])
def test_the_gradient_of_cross_entropy_is_that_of_autograd(has_class_weights: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    outputs = torch.randn(3, 4, 5, dtype=torch.float64, generator=draw).requires_grad_()
    weight = torch.tensor([[1.0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]).double()
    batch: dict[str, Any] = {"y": torch.arange(12).reshape(3, 4) % 5, "weight": weight}
    if has_class_weights:
        batch[CLASS_WEIGHT] = torch.rand(3, 4, dtype=torch.float64, generator=draw)
    losses = classification_loss(outputs, batch)
    (slope,) = torch.autograd.grad(losses.sum(), outputs)
    found = loss_gradient(outputs.detach(), batch)
    assert found is not None
    torch.testing.assert_close(found[0], losses.detach())
    torch.testing.assert_close(found[1], slope)
    assert torch.autograd.gradgradcheck(lambda z: classification_loss(z, batch), (outputs,))
    assert loss_gradient(outputs.detach(), {**batch, SMOOTHING: weight}) is None
