from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import worlds
from torch import Tensor, nn

from fl.api import BuildContext, Training, trees
from fl.api.alteration import Alteration, Alterations
from fl.api.network import Network
from fl.base.errors import FedloomError
from fl.methods.fedavg import FedAvg
from fl.methods.fedfa import FedFA
from fl.methods.fedl2p import FedL2P
from fl.methods.perfedavg import PerFedAvg
from fl.pytorch import torch_internals
from fl.terms.alterations.mixstyle import MixStyle
from fl.terms.cosine import Cosine

CNN = Network(lambda: worlds.module("cnn"), torch.float64)
X = torch.randn(6, 1, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_a_seed_gives_the_same_weights_and_leaves_torchs_own_stream_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first, again, other = CNN.init(4), CNN.init(4), CNN.init(5)
    assert torch.equal(torch.rand(3), expected)
    assert worlds.same(first, again)
    assert not torch.equal(first["params"]["0.weight"], other["params"]["0.weight"])


def test_training_and_evaluation_are_the_modules_own() -> None:
    variables = CNN.init(0)
    before = trees.apply(torch.clone, variables)
    module = worlds.module("cnn").double()
    module.load_state_dict({**variables["params"], **variables["buffers"]})
    outputs, features, moved, _ = CNN.train(variables["params"], variables["buffers"], X)
    torch.testing.assert_close(outputs, module(X), rtol=0, atol=1e-14)
    assert worlds.distance(moved, {k: module.state_dict()[k] for k in moved}) < 1e-14
    assert float(moved["1.running_mean"].abs().max()) > 0
    module.eval()
    head = module[-1]
    torch.testing.assert_close(head(features), outputs, rtol=0, atol=1e-14)
    scores = CNN.eval(variables["params"], moved, X).outputs
    torch.testing.assert_close(scores, module(X), rtol=0, atol=1e-14)
    assert worlds.same(variables, before)


def test_a_stack_of_clients_moves_buffers_that_it_shares_for_each_client_alone() -> None:
    """The server's statistics, read by all, or inputs that all have: images of the server's."""
    variables, others = CNN.init(0), torch.stack([X, 2 * X + 1])
    params = trees.stack([CNN.init(1)["params"], CNN.init(2)["params"]])

    def moved(weights: trees.Tree, batch: trees.Tree) -> trees.Tree:
        return {"b": CNN.train(weights, variables["buffers"], batch["x"]).buffers}

    for dims, batch in (((0, 0), {"x": others}), ((None, 0), {"x": others}), ((0, None), {"x": X})):
        weights = params if dims[0] == 0 else variables["params"]
        stacked = trees.vmap(moved, dims)(weights, batch)
        for client in range(2):
            alone = moved(
                trees.take(weights, client) if dims[0] == 0 else weights,
                trees.take(batch, client) if dims[1] == 0 else batch,
            )
            assert worlds.distance(trees.take(stacked, client), alone) < 1e-12
    assert worlds.same(variables, CNN.init(0))


@pytest.mark.parametrize("kind", [dict, tuple])
def test_a_model_that_returns_no_tensor_is_told_so(kind: type) -> None:
    class Several(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return kind({"logits": super().forward(x)})

    message = f"returns an object of type {kind.__name__}, not a tensor. Try: let"
    with pytest.raises(FedloomError, match=message):
        Network(lambda: Several(3, 2)).probe(torch.zeros(1, 3))


@pytest.mark.parametrize(
    ("narrow", "shape"), [(lambda y: y.sum(), "[]"), (lambda y: y[:1], "[1, 2]")]
)
def test_a_model_has_a_row_of_outputs_for_each_sample(narrow: Any, shape: str) -> None:
    class Fewer(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return narrow(super().forward(x))

    message = f"outputs for 2 samples are {shape}. Allowed: [2, ...], a row for each sample"
    with pytest.raises(FedloomError, match=re.escape(message)):
        Network(lambda: Fewer(3, 2)).probe(torch.zeros(1, 3))


class Probe(nn.Module):
    """A convolution that notes what it is given and what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.format, self.dtype = True, torch.float64

    def forward(self, x: Tensor) -> Tensor:
        self.format = x.is_contiguous(memory_format=torch.channels_last)
        y = self.conv(x)
        self.dtype = y.dtype
        return y.flatten(1)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_how_it_computes_is_seen_inside_only(mixed: bool, channels_last: bool) -> None:
    probe = Probe()
    network = Network(lambda: probe, mixed=mixed, channels_last=channels_last)
    network.tap(["conv"])
    variables = network.init(0)
    out = network.train(variables["params"], variables["buffers"], torch.ones(4, 2, 5, 5))
    assert probe.format == channels_last
    assert probe.dtype == (torch.bfloat16 if mixed else torch.float32)
    assert {t.dtype for t in (out.outputs, out.features, out.taps["conv"])} == {torch.float32}


def test_names_that_pytorch_does_not_promise_are_used_in_one_place() -> None:
    unpromised = re.compile(
        r"\btorch(\.\w+)*\._[a-z]\w*|_functorch|_BatchNorm|\._(parameters|buffers|modules)\b"
    )
    root = Path(torch_internals.__file__).parent
    users = [p.name for p in root.rglob("*.py") if unpromised.search(p.read_text(encoding="utf-8"))]
    assert users == ["torch_internals.py"]


def test_a_view_is_tapped_and_the_network_is_not() -> None:
    network = Network(lambda: worlds.module("cnn"), torch.float64)
    variables = network.init(0)
    params, buffers = variables["params"], variables["buffers"]
    network.tap(["0"])
    plain = network.train(params, buffers, X)
    state, view = torch.get_rng_state(), network.view()
    assert view.origin is view.view().origin is network
    assert set(view.train(params, buffers, X).taps) == {"0"}
    view.tap(["2"])
    untouched = view.train(params, buffers, X).taps["2"]
    view.alter(["2"])
    view.surround(["3"])
    double, nothing = {"2": lambda x: 2 * x}, {"3": lambda layer, inner, x: 0 * inner(x)}
    seen = view.train(params, buffers, X, alter=double, around=nothing)
    assert set(seen.taps) == {"0", "2"} and torch.equal(seen.taps["2"], 2 * untouched)
    again = network.train(params, buffers, X, alter=double, around=nothing)
    assert set(again.taps) == {"0"} and torch.equal(again.outputs, plain.outputs)
    assert torch.equal(view.train(params, buffers, X).outputs, plain.outputs)
    assert torch.equal(torch.get_rng_state(), state), "a module of its own costs no random numbers"
    network.tap(["1"])
    assert set(view.train(params, buffers, X).taps) == {"0", "2"}


def test_features_are_altered_in_training_where_they_are_named() -> None:
    """A tap sees what comes out, whoever asked first; what follows gets it; evaluation does not."""
    network = Network(lambda: worlds.module("cnn"), torch.float64)
    variables = network.init(0)
    params, buffers = variables["params"], variables["buffers"]
    before, scores = network.train(params, buffers, X), network.eval(params, buffers, X)
    network.tap(["0"])
    network.alter(["0", "2"])
    plain = network.train(params, buffers, X)
    doubled = network.train(params, buffers, X, alter={"0": lambda features: 2 * features})
    assert torch.equal(plain.outputs, before.outputs), "a pass that names none alters none"
    assert torch.equal(doubled.taps["0"], 2 * plain.taps["0"])
    moved, usual = doubled.buffers["1.running_mean"], plain.buffers["1.running_mean"]
    torch.testing.assert_close(moved, 2 * usual, rtol=0, atol=1e-14)
    assert torch.equal(network.eval(params, buffers, X).outputs, scores.outputs)
    with pytest.raises(FedloomError, match=r"no layer 'body'. Allowed: '0' \("):
        network.alter(["body"])


def test_alterations_compute_in_the_weights_precision() -> None:
    network = Network(lambda: worlds.module("cnn"), mixed=True)
    variables, seen = network.init(0), list[torch.dtype]()

    def alter(features: Tensor) -> Tensor:
        seen.append(features.dtype)
        return features

    network.alter(["0"])
    network.tap(["1"])
    network.train(variables["params"], variables["buffers"], X.float(), alter={"0": alter})
    assert seen[-1] == torch.float32


class Twice(nn.Module):
    """One layer, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.relu, self.head = nn.ReLU(), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.relu(self.relu(x) - 1))
        return out


def test_alterations_of_one_layer_follow_each_other_and_a_layer_is_used_once() -> None:
    def adding(number: float) -> Alteration:
        return Alteration(
            f"add {number}", ("relu",), lambda layer, x, batch, state: (x * number + number, {})
        )

    batch = {"key": torch.arange(2)}
    given, _ = Alterations([adding(2), adding(3)]).functions({}, batch)
    assert given["relu"](torch.ones(2)).tolist() == [15, 15], "(1 * 2 + 2) * 3 + 3"
    network = Network(Twice, torch.float64)
    network.alter(["relu"])
    variables = network.init(0)
    given, _ = Alterations([adding(2)]).functions({}, batch)
    with pytest.raises(FedloomError, match=r"uses relu more than once in a pass"):
        network.train(**variables, x=torch.ones(2, 3, dtype=torch.float64), alter=given)


def test_building_a_method_leaves_its_network_as_it_is() -> None:
    network = Network(lambda: worlds.module("cnn"), torch.float64)
    variables = network.init(0)
    context = BuildContext(network, Training(), worlds.CLASSES, 2, (1, 4, 4))
    plain = network.eval(variables["params"], variables["buffers"], X)
    term, alteration = Cosine(("2",)).build(context), MixStyle(("0",)).build(context)
    added = replace(context, terms=(term,), alterations=(alteration,))
    FedAvg().build(added)
    FedFA(layers=("0",)).build(added)
    FedL2P().build(context)
    PerFedAvg().build(replace(context, alterations=(alteration,)))
    found = network.eval(variables["params"], variables["buffers"], X)
    assert not found.taps and torch.equal(found.outputs, plain.outputs)
    assert not network._watched and not network._surrounded


class Changing(nn.Linear):
    """A layer with a buffer ``count``, whose forward changes what its subclasses say."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.register_buffer("count", torch.zeros(2))

    def change(self) -> None:
        """Nothing changes."""

    def forward(self, x: Tensor) -> Tensor:
        self.change()
        return super().forward(x) + self.count


class Counting(Changing):
    def change(self) -> None:
        self.count += 1


class Assigning(Changing):
    def change(self) -> None:
        self.count = self.count + 1


class Clamping(Changing):
    def change(self) -> None:
        self.weight.data.clamp_(-0.01, 0.01)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Counting, "buffer count in evaluation mode"),
        (Assigning, "buffer count"),
        (Clamping, "weight weight in training mode"),
    ],
)
def test_a_pass_that_changes_what_it_may_not_is_refused(kind: type[Changing], name: str) -> None:
    with pytest.raises(FedloomError, match=name):
        Network(kind).probe(torch.zeros(1, 3))


def test_a_buffer_may_change_in_training_and_a_table_may_grow() -> None:
    class Right(Changing):
        def change(self) -> None:
            if self.training:
                self.count += 1
            self.table = torch.arange(4.0)

    def build() -> nn.Module:
        module = Right()
        module.register_buffer("table", torch.zeros(1))
        return module

    Network(build).probe(torch.zeros(1, 3))


def compiled() -> nn.Module:
    return torch.compile(nn.Linear(3, 2))  # type: ignore[return-value]


def compiled_in_place() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 2))
    module[0].compile()
    return module


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: nn.Sequential(nn.LazyLinear(2)), "0.weight .* LazyLinear"),
        (lambda: nn.Linear(3, 2, dtype=torch.complex64), "weight .* complex64"),
        (lambda: nn.Sequential(nn.Linear(3, 2, device="meta")), "0.weight .* device meta"),
        (lambda: nn.Sequential(nn.Embedding(3, 2, max_norm=1.0)), "layer 0 .* max_norm"),
        (compiled, "the model is a compiled program"),
        (compiled_in_place, "layer 0 of the model is a compiled program"),
        (lambda: torch.jit.script(nn.Linear(3, 2)), "the model is a compiled program"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_by_its_cause(build: Any, said: str) -> None:
    with pytest.raises(FedloomError, match=said):
        Network(build)


def test_a_head_that_shares_a_weight_with_an_earlier_layer_is_named() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.middle, self.last = nn.Linear(3, 2), nn.Linear(2, 3), nn.Linear(3, 2)
            self.last.weight = self.first.weight

        def forward(self, x: Tensor) -> Any:
            return self.last(self.middle(self.first(x)))

    network = Network(Tied)
    network.probe(torch.zeros(1, 3))
    assert network.head == {"last.bias"}
    assert network.tied_head == ["first.weight"]
    assert CNN.tied_head == []
