"""Construction of a model: frozen weights, seeded generators, tensors that nobody would store."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl.api import trees
from fl.api.network import Network
from fl.base.errors import FedloomError
from fl.pytorch.construction import seeded


class Drawn(nn.Module):
    """A model with weights and constants from all generators; its projection is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(4, 6).requires_grad_(False)
        self.layer, self.head = nn.Linear(6, 5), nn.Linear(5, 3)
        with torch.no_grad():
            self.layer.weight.copy_(torch.from_numpy(np.random.randn(5, 6)))
            self.layer.bias.fill_(random.random())
        self.register_buffer("shift", torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.layer(self.projection(x)) + self.shift))
        return out


X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def generators() -> list[object]:
    name, keys, *rest = np.random.get_state()
    return [torch.get_rng_state().tolist(), name, keys.tolist(), rest, random.getstate()]


def test_every_generator_is_seeded_and_restored() -> None:
    before = generators()
    first = Network(Drawn, torch.float64)
    first.probe(X)
    first.view().tap(["layer"])
    variables = first.init(3)
    assert generators() == before
    torch.rand(5), np.random.rand(5), random.random()
    second = Network(Drawn, torch.float64)
    again = second.init(3)
    leaves = zip(trees.leaves(variables), trees.leaves(again), strict=True)
    assert all(torch.equal(a, b) for a, b in leaves)
    outputs = [
        n.eval(variables["params"], variables["buffers"], X).outputs for n in (first, second)
    ]
    assert torch.equal(*outputs), "frozen weights are the same in every process"
    other = first.init(4)["params"]
    assert not torch.equal(other["layer.weight"], variables["params"]["layer.weight"])


def test_generators_are_restored_after_an_error() -> None:
    before = generators()
    with pytest.raises(RuntimeError), seeded(2**40):
        random.random(), torch.rand(1), np.random.rand(1)
        raise RuntimeError
    assert generators() == before


def test_frozen_weights_are_part_of_the_network_and_not_of_its_variables() -> None:
    network = Network(Drawn, torch.float64)
    network.probe(X)
    variables = network.init(0)
    assert network.names["params"] == ["layer.weight", "layer.bias", "head.weight", "head.bias"]
    assert [*variables["params"]] == network.names["params"]
    assert network.head == {"head.weight", "head.bias"}
    module = network.module(variables)
    expected = module(X)
    for each in (network, network.view()):
        outputs = each.train(variables["params"], variables["buffers"], X).outputs
        torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-14)
    stack = trees.vmap(
        lambda tree, x: {"outputs": network.eval(tree["params"], tree["buffers"], x["x"]).outputs},
        (0, None),
    )(trees.repeat(variables, 2), {"x": X})["outputs"]
    torch.testing.assert_close(stack[1], expected, rtol=0, atol=1e-14)


class Holder(nn.Module):
    """A model with an attribute."""

    def __init__(self, value: object) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.layer.extra = value if value != "own" else [self.layer.weight]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: [1, (t,)], lambda t: {"a": {"b": t}}])
def test_tensors_that_are_attributes_are_refused(wrap: object) -> None:
    value = wrap(torch.randn(3))  # type: ignore[operator]
    with pytest.raises(FedloomError, match=r"the tensor layer\.extra of the model is neither a"):
        Network(lambda: Holder(value))


@pytest.mark.parametrize("value", ["own", 3, torch.ones(3, requires_grad=True) * 2])
def test_other_attributes_are_accepted(value: object) -> None:
    Network(lambda: Holder(value))
    Network(lambda: nn.LSTM(4, 3))
