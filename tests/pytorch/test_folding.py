"""Layers folded in a stack of clients are those that clients have, and take fewer passes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from folded import CLIENTS, IMAGES, LAYERS, LIMITS, equal, passed, with_gradients
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from fl.api import trees
from fl.api.network import Network
from fl.api.trees import Tree
from fl.pytorch.folding import call_on_stacks, inner_product, linear, sum_of_squares

BATCH = 4


def world(name: str, dtype: torch.dtype = torch.float64) -> tuple[Network, dict[str, Any], Tensor]:
    """The network of some layers, variables of clients that differ, and a batch of each."""
    make, shape = LAYERS[name]
    network = Network(make, dtype)
    variables = trees.stack([network.init(seed) for seed in range(CLIENTS)])
    draw = torch.Generator().manual_seed(1)
    return network, variables, torch.randn(CLIENTS, BATCH, *shape, dtype=dtype, generator=draw)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("name", LAYERS)
def test_a_stack_gives_what_its_clients_give(name: str, dtype: torch.dtype, training: bool) -> None:
    network, variables, x = world(name, dtype)
    call = passed(network, training)
    stacked, slopes = with_gradients(trees.vmap(call, (0, 0)), variables, x)
    alone = [with_gradients(call, trees.take(variables, k), x[k]) for k in range(CLIENTS)]
    equal(trees.leaves(stacked), [trees.leaves(found) for found, _ in alone], dtype)
    equal(slopes, [own for _, own in alone], dtype)
    if training and variables["buffers"] and "statistics" not in name:
        before = [t for t in trees.leaves(variables["buffers"]) if t.is_floating_point()]
        after = [t for t in trees.leaves(stacked["buffers"]) if t.is_floating_point()]
        assert all((a != b).any() for a, b in zip(after, before, strict=True))


PASSES = ("mul", "clone", "convolution", "native_batch_norm", "max_pool2d_with_indices")


class Seen(TorchDispatchMode):
    """What operations are given as many dimensions, and whether it has channels last."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.dims = dims
        self.found: list[tuple[str, tuple[int, ...], bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if args and isinstance(args[0], Tensor) and args[0].dim() >= self.dims:
            last = args[0].dim() == 4 and args[0].is_contiguous(memory_format=torch.channels_last)
            self.found.append((name, tuple(args[0].shape), last))
        return func(*args, **(kwargs or {}))


VIEWS = ("transpose", "unsqueeze", "alias", "view", "detach")


def test_images_of_clients_with_shared_weights_are_pooled_with_channels_last() -> None:
    network, variables, x = world("all of them", torch.float32)
    shared = trees.take(variables, 0)
    call = trees.vmap(passed(network, False), (None, 0))
    with Seen(dims=4) as seen:
        found = call(shared, {"x": x})["outputs"]
    pools = [last for name, _, last in seen.found if name == "max_pool2d_with_indices"]
    assert pools and all(pools)
    alone = [passed(network, False)(shared, {"x": x[k]})["outputs"] for k in range(CLIENTS)]
    equal([found], [[outputs] for outputs in alone], torch.float32)


def test_a_linear_layer_is_one_product_for_all_clients() -> None:
    network, variables, x = world("linear")
    call = trees.vmap(passed(network, True), (0, 0))
    call(variables, {"x": x})  # What the first pass looks up.
    with Seen(dims=2) as seen:
        call(variables, {"x": x})
    assert [name for name, *_ in seen.found if name not in VIEWS] == ["baddbmm"]


def test_a_function_sees_whole_stacks_where_all_it_takes_is_stacked() -> None:
    seen = []

    def total(x: Tensor, y: Tensor) -> Tensor:
        seen.append(x.dim())
        return (x * y).sum(-1)

    x, y = torch.arange(6.0).reshape(3, 2), torch.ones(3, 2)
    assert vmap(partial(call_on_stacks, total))(x, y).tolist() == [1, 5, 9]
    assert vmap(partial(call_on_stacks, total), (0, None))(x, y[0]).tolist() == [1, 5, 9]
    assert call_on_stacks(total, x[1], y[1]) == 5 and vmap(grad(partial(call_on_stacks, total)))(
        x, y
    ).equal(y)
    assert seen == [2, 1, 1, 1]


def test_products_of_stacks_are_summed_as_by_vmap() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((5, 7), (3, 2, 4), ())
    stacks, others = (
        [torch.randn(4, *shape, generator=generator) for shape in shapes] for _ in range(2)
    )

    def plain(*tensors: Tensor) -> Tensor:
        products = [a * b for a, b in zip(tensors[:3], tensors[3:], strict=True)]
        return torch.stack([product.sum() for product in products]).sum()

    def folded(*tensors: Tensor) -> Tensor:
        return inner_product(tensors[:3], tensors[3:])

    def results(function: Callable[..., Tensor]) -> list[Tensor]:
        leaves = [leaf.clone().requires_grad_() for leaf in (*stacks, *others)]
        sums = vmap(function)(*leaves)
        weights = torch.arange(4.0)
        return [sums, *torch.autograd.grad((sums * weights).sum(), leaves)]

    for found, expected in zip(results(folded), results(plain), strict=True):
        torch.testing.assert_close(found, expected)
    one = [leaf[1] for leaf in (*stacks, *others)]
    assert folded(*one) == plain(*one)


@pytest.mark.parametrize(("inputs", "has_bias"), [((2, 5), True), ((2, 5), False), ((5,), True)])
def test_a_linear_function_is_one_product(inputs: tuple[int, ...], has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(CLIENTS, *shape, generator=generator) for shape in (inputs, (3, 5), (3,))
    )

    def results(function: Callable[..., Tensor]) -> list[Tensor]:
        leaves = [leaf.clone().requires_grad_() for leaf in (x, weight, bias)[: 2 + has_bias]]
        outputs = vmap(lambda *tensors: function(*tensors, *[None] * (3 - len(tensors))))(*leaves)
        return [outputs, *torch.autograd.grad(outputs.square().sum(), leaves)]

    for found, expected in zip(results(linear), results(F.linear), strict=True):
        torch.testing.assert_close(found, expected)
    # Of weights that all clients share there is no stack.
    same = vmap(lambda x: linear(x, weight[0], None))(x)
    assert same.equal(vmap(lambda x: F.linear(x, weight[0], None))(x))


@pytest.mark.parametrize("each", ["own", "same", "nothing"])
def test_squares_of_a_stack_are_summed_to_the_bits_of_vmap(each: str) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((5, 7), (3, 2, 4), ())
    stacks = [torch.randn(4, *shape, generator=generator) for shape in shapes]
    others = [torch.randn(4, *shape, generator=generator) for shape in shapes]
    if each != "own":
        others = [other[0] for other in others] if each == "same" else []
    dims = (0, 0 if each == "own" else None)

    def plain(tensors: list[Tensor], others: list[Tensor]) -> Tensor:
        pairs = zip(tensors, others, strict=True)
        differences = [a - b for a, b in pairs] if others else tensors
        return torch.stack([d.square().sum() for d in differences]).sum()

    def results(function: Any) -> tuple[list[Tensor], int]:
        leaves = [stack.clone().requires_grad_() for stack in stacks]
        with Seen(dims=0) as seen:
            sums = vmap(function, dims)(leaves, others)
            grads = torch.autograd.grad((sums * torch.arange(4)).sum(), leaves, create_graph=True)
            again = torch.autograd.grad(sum((g**3).sum() for g in grads), leaves)
        return [sums, *grads, *again], len(seen.found)

    (found, few), (expected, many) = results(sum_of_squares), results(plain)
    assert all(a.equal(b) for a, b in zip(found[:4], expected[:4], strict=True))
    assert all(a.allclose(b) for a, b in zip(found[4:], expected[4:], strict=True))
    assert few < many
    one = [stack[1] for stack in stacks], [other[1] if each == "own" else other for other in others]
    assert sum_of_squares(*one) == plain(*one) and sum_of_squares(*one).isclose(found[0][1])


def test_from_the_first_convolution_on_clients_stay_in_the_channels() -> None:
    network, variables, x = world("all of them", torch.float32)
    call = trees.vmap(passed(network, True), (0, 0))
    call(variables, {"x": x})  # What the first pass looks up.
    with Seen(dims=4) as seen:
        call(variables, {"x": x})
    found = [(name, shape, last) for name, shape, last in seen.found if name in PASSES]
    copied = [shape for name, shape, _ in found if name == "clone"]
    assert copied[0] == (BATCH, 6, 6, CLIENTS, 4) and len(copied) <= 2, "in front, and at the end"
    assert [(name, shape, last) for name, shape, last in found if name != "clone"] == [
        ("convolution", (BATCH, 12, 6, 6), True),
        ("native_batch_norm", (BATCH, 18, 6, 6), True),
        ("max_pool2d_with_indices", (BATCH, 18, 6, 6), True),
        ("convolution", (BATCH, 18, 3, 3), True),
        ("native_batch_norm", (BATCH, 9, 1, 1), True),
    ]


@pytest.mark.parametrize("name", ["convolution", "linear", "normalised images", "all of them"])
def test_within_other_transforms_nothing_is_folded(name: str) -> None:
    network, variables, x = world(name)
    call = passed(network, False)

    def value(x: Tensor, variables: Tree) -> Tensor:
        return (call(variables, {"x": x})["outputs"] ** 2).sum()

    slopes = vmap(grad(value))(x, variables)
    alone = [grad(value)(x[k], trees.take(variables, k)) for k in range(CLIENTS)]
    equal([slopes], [[own] for own in alone], torch.float64)
    twice = vmap(vmap(value, (0, None)), (None, 0))(x, variables)
    each = [vmap(value, (0, None))(x, trees.take(variables, k)) for k in range(CLIENTS)]
    equal([twice], [[own] for own in each], torch.float64)


def test_a_layer_of_ones_own_is_left_alone() -> None:
    class OneMore(nn.Conv2d):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) + 1

    network = Network(lambda: OneMore(1, 2, 1), torch.float64)
    variables = trees.stack([network.init(seed) for seed in range(CLIENTS)])
    x = torch.ones(CLIENTS, 1, 1, 2, 2, dtype=torch.float64)
    call = passed(network, True)
    stacked = trees.vmap(call, (0, 0))(variables, {"x": x})["outputs"]
    each = [call(trees.take(variables, k), {"x": x[k]})["outputs"] for k in range(CLIENTS)]
    equal([stacked], [[own] for own in each], torch.float64)


class Own(nn.Module):
    """Plain layers in a forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.MaxPool2d(2))

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(self.layers(x), 1).flatten(1)


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "by group": lambda: nn.Sequential(
        nn.Conv2d(4, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(), nn.Conv2d(6, 4, 3)
    ),
    "own": Own,
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", OTHERS)
def test_where_a_layer_might_not_understand_it_channels_are_not_last(name: str) -> None:
    network = Network(OTHERS[name])
    assert not network.folds and Network(LAYERS["all of them"][0]).folds
    variables = trees.stack([network.init(seed) for seed in range(CLIENTS)])
    x = torch.randn(CLIENTS, BATCH, *IMAGES, generator=torch.Generator().manual_seed(1))
    call = passed(network, True)
    stacked, slopes = with_gradients(trees.vmap(call, (0, 0)), variables, x)
    alone = [with_gradients(call, trees.take(variables, k), x[k]) for k in range(CLIENTS)]
    equal([stacked["outputs"]], [[found["outputs"]] for found, _ in alone], torch.float32)
    equal(slopes, [own for _, own in alone], torch.float32)
