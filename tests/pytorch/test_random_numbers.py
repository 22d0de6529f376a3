"""Random numbers inside models: keyed, or refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import worlds
from torch import Tensor, nn
from torch.func import grad, vmap
from worlds import world

from fl.api import trees
from fl.api.method import BuildContext
from fl.api.network import Network
from fl.api.trees import Tree
from fl.base.errors import FedloomError, Location
from fl.engine.simulation import Simulation
from fl.pytorch import random_numbers
from fl.pytorch.random_numbers import RandomNumbers

KEY = torch.arange(400) + 2**60


class Encoder(nn.Module):
    """A small vision transformer, as one writes it with PyTorch's layers: a token for each row."""

    def __init__(self, dropout: float = 0.2, batch_first: bool = True) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.embed = nn.Linear(4, 8)
        self.layers = nn.TransformerEncoderLayer(
            8, 2, 12, dropout, "gelu", batch_first=batch_first, norm_first=True
        )
        self.classifier = nn.Linear(8, worlds.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x.flatten(1, 2))
        if self.batch_first:
            tokens = self.layers(tokens)
        else:
            tokens = self.layers(tokens.transpose(0, 1)).transpose(0, 1)
        out: Tensor = self.classifier(tokens.mean(1))
        return out


class Functional(nn.Module):
    """Every function that draws, called in a forward; attention has weights that are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3, padding=1)
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True)
        self.classifier = nn.Linear(4, worlds.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.convolution(x).relu()
        x = F.dropout2d(x, 0.1, self.training).flatten(2).transpose(1, 2)
        x, _ = self.attention(x, x, x, need_weights=True)
        heads = x.unflatten(-1, (2, 2)).transpose(1, 2)
        p = 0.3 if self.training else 0.0
        heads = F.scaled_dot_product_attention(heads, heads, heads, dropout_p=p)
        x = heads.transpose(1, 2).flatten(2)
        x = F.dropout(x, 0.1, training=self.training)
        out: Tensor = self.classifier(x.mean(1))
        return out


def of(make: Any, method: str = "fedavg", **training: Any) -> Simulation:
    like = world(method, "cnn", **training)
    network = Network(make, torch.float64)
    network.probe(torch.zeros(1, *worlds.SHAPES["cnn"], dtype=torch.float64))
    context = BuildContext(network, like.training, worlds.CLASSES, 4)
    entry = worlds.entry(method)
    values = entry.parse(None, Location("test"))
    return replace(like, network=network, method=entry.instantiate(values).build(context))


class FunctionAlone(nn.Module):
    """No layer that draws: `F.dropout` in the model's own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.classifier = nn.Linear(16, 32), nn.Linear(32, worlds.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.hidden(x.flatten(1)).relu(), 0.5, self.training)
        out: Tensor = self.classifier(x)
        return out


def test_a_model_that_draws_by_a_function_alone_is_found_by_its_probe() -> None:
    network = Network(FunctionAlone, torch.float64)
    assert not network.random
    network.probe(torch.zeros(1, 16, dtype=torch.float64))
    assert network.random
    variables, x = network.init(0), torch.ones(400, 16, dtype=torch.float64)
    state = torch.get_rng_state()
    first, again, other = (
        network.train(variables["params"], {}, x, key=key).outputs for key in (KEY, KEY, KEY + 1000)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state), "the shared generator was not used"


@pytest.mark.parametrize(
    "make", [Encoder, Functional, FunctionAlone, lambda: Encoder(batch_first=False)]
)
def test_functions_that_draw_are_the_same_in_every_backend_and_again(make: Any) -> None:
    simulation = of(make, rounds=2)
    assert simulation.network.random
    loop, rows = worlds.run(simulation)
    torch.manual_seed(1)
    again, _ = worlds.run(of(make, rounds=2))
    assert worlds.same(worlds.tree(again), worlds.tree(loop))
    stacked, stacked_rows = worlds.run(simulation, "stacked")
    assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-10
    assert worlds.rows_agree(stacked_rows, rows, 1e-10)
    other, _ = worlds.run(replace(simulation, seed=6))
    assert worlds.distance(worlds.tree(other), worlds.tree(loop)) > 1e-3


def test_the_compiler_sees_the_functions_that_are_replaced() -> None:
    """Traced and not translated, which needs no C++ compiler."""
    network = of(Functional).network
    variables = network.init(0)
    params = trees.stack([variables["params"], network.init(1)["params"]])
    x = torch.randn(2, 3, 1, 4, 4, generator=torch.Generator().manual_seed(0)).double()

    def loss(params: Tree, x: Tensor, key: Tensor) -> Tensor:
        return network.train(params, {}, x, key=key).outputs.square().sum()

    step = vmap(grad(loss))
    traced = torch.compile(step, dynamic=False, backend="aot_eager", fullgraph=True)
    key = KEY[:6].reshape(2, 3)
    assert worlds.distance(traced(params, x, key), step(params, x, key)) < 1e-12


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_model_that_drops_nothing_is_that_of_pytorch(batch_first: bool) -> None:
    network = Network(lambda: Encoder(0.0, batch_first), torch.float64)
    variables = network.init(0)
    x = torch.randn(5, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    network.probe(x)
    assert not network.random
    module = Encoder(0.0, batch_first).double()
    module.load_state_dict(variables["params"])
    outputs = network.train(variables["params"], {}, x).outputs
    torch.testing.assert_close(outputs, module(x), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("mask", "causal"), [(None, False), (None, True), ("bool", False), ("float", False)]
)
def test_attention_in_plain_arithmetic_is_pytorchs(mask: str | None, causal: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, 4, 5, 6, generator=draw, dtype=torch.float64) for _ in range(3))
    masks = {
        None: None,
        "bool": torch.ones(5, 5, dtype=torch.bool).tril(1),
        "float": torch.randn(3, 1, 5, 5, generator=draw, dtype=torch.float64),
    }
    for extra in ({}, {"scale": 0.3}, {"enable_gqa": True}):
        if "enable_gqa" in extra:
            k, v = k[:, :2], v[:, :2]
        expected = F.scaled_dot_product_attention(q, k, v, masks[mask], 0.0, causal, **extra)
        with random_numbers.replace_functions(RandomNumbers(None)):
            found = F.scaled_dot_product_attention(q, k, v, masks[mask], 0.0, causal, **extra)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_functions_drop_as_they_say() -> None:
    """Shares and moments of 400 samples of 6 channels of 50, by PyTorch's definitions."""
    x = torch.randn(400, 6, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with random_numbers.replace_functions(RandomNumbers(KEY)):
        elements, channels = F.dropout(x, 0.25), F.dropout1d(x, 0.25)
        untouched = F.dropout(x, 0.5, training=False)
        inside = x.clone()
        F.dropout(inside, 0.25, inplace=True)
    for dropped, places in ((elements, (0, 1, 2)), (channels, (0, 1))):
        gone = dropped == 0
        whole = gone if len(places) == 3 else gone.all(-1)
        assert abs(float(whole.double().mean()) - 0.25) < 0.03
        torch.testing.assert_close(dropped[~gone], x[~gone] / 0.75)
        if len(places) == 2:
            assert bool((gone.any(-1) == whole).all())
    assert untouched is x
    assert abs(float((inside == 0).double().mean()) - 0.25) < 0.03


def test_a_layer_that_is_called_twice_drops_other_elements() -> None:
    layer = nn.Dropout(0.5)
    with random_numbers.replace_functions(RandomNumbers(KEY)):
        assert not torch.equal(layer(torch.ones(400, 3)), layer(torch.ones(400, 3)))


class Drawing(nn.Module):
    """A linear model that adds what ``draw`` gives."""

    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.classifier, self.draw = nn.Linear(16, worlds.CLASSES), draw

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(x.flatten(1)) + self.draw(self)
        return out


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.rnn = kind(4, 5, num_layers=2, dropout=0.5, batch_first=True)
        self.classifier = nn.Linear(5, worlds.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.rnn(x.flatten(1, 2))[0][:, -1])
        return out


OWN = torch.Generator().manual_seed(0)
REFUSED = {
    "lstm": (lambda: Recurrent(nn.LSTM), r"layer 'rnn' \(LSTM\) draws random .*nn\.Dropout in"),
    "noise": (
        lambda: Drawing(lambda m: torch.randn(()) if m.training else 0),
        r"the model \(Drawing\) draws random numbers that do not depend on the batch's keys. Try",
    ),
    "alpha-dropout": (
        lambda: nn.Sequential(nn.Flatten(), nn.AlphaDropout(0.2)),
        r"layer '1' \(AlphaDropout\) draws random",
    ),
    "own-generator": (
        lambda: Drawing(lambda m: torch.randn((), generator=OWN) if m.training else 0),
        "two different outputs for the same input and keys",
    ),
    "evaluation": (
        lambda: Drawing(lambda m: 0 if m.training else torch.randn(())),
        "draws random numbers in evaluation mode",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_key_decides_is_refused_by_name(name: str) -> None:
    make, message = REFUSED[name]
    network = Network(make, torch.float64)
    x = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    with pytest.raises(FedloomError, match=message):
        network.probe(x)
    variables = network.init(0)
    # Whoever does not ask is told by the first step.
    with pytest.raises(FedloomError, match=message):
        unasked = Network(make, torch.float64)
        unasked.train(variables["params"], variables["buffers"], x)


def test_a_method_that_draws_from_the_shared_stream_is_refused() -> None:
    simulation = world("fedavg")
    own = simulation.method.aggregate
    noisy = replace(simulation.method, aggregate=lambda *given: (torch.rand(1), own(*given))[1])
    with pytest.raises(FedloomError, match="round 1 used PyTorch's shared random numbers"):
        worlds.run(replace(simulation, method=noisy))
