"""Sequences of layers give a whole stack at once what its clients give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from folded import CLIENTS, IMAGES, LAYERS, equal, passed, with_gradients
from torch import Tensor, nn

from fl.api import trees
from fl.api.network import Network
from fl.pytorch.layer_sequence import LayerSequence

Make = Callable[[], nn.Module]


def twice() -> nn.Module:
    layer = nn.Linear(5, 5)
    return nn.Sequential(layer, nn.Tanh(), layer)


SEQUENCES: dict[str, tuple[Make, tuple[int, ...]]] = {
    "all of them": LAYERS["all of them"],
    "numbers": (lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), (5,)),
    "without a bias": (lambda: nn.Sequential(nn.Linear(5, 4, bias=False), nn.ELU()), (5,)),
    "one layer twice": (twice, (5,)),
    "series": (lambda: nn.Sequential(nn.Linear(5, 4), nn.Flatten(), nn.Linear(12, 2)), (3, 5)),
    "in place": (lambda: nn.Sequential(nn.Conv2d(4, 2, 3), nn.ReLU(inplace=True)), IMAGES),
    "pool first": (
        lambda: nn.Sequential(nn.AvgPool2d(2), nn.Identity(), nn.Conv2d(4, 2, 1), nn.Sigmoid()),
        IMAGES,
    ),
    "normalised first": (
        lambda: nn.Sequential(nn.BatchNorm2d(4), nn.Sequential(nn.Conv2d(4, 4, 1, groups=2))),
        IMAGES,
    ),
    "rows of images": (
        lambda: nn.Sequential(nn.Conv2d(4, 2, 1), nn.Linear(6, 3), nn.MaxPool2d(2)),
        IMAGES,
    ),
    "images as numbers": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 3)), IMAGES),
}


def hooked(whole: bool) -> nn.Module:
    """A layer whose weight a hook makes before each call, or a sequence that is looked at."""
    layer = nn.Linear(5, 3) if whole else nn.utils.weight_norm(nn.Linear(5, 3))
    made = nn.Sequential(layer)
    if whole:
        made.register_forward_hook(lambda *_: None)
    return made


OTHERS: dict[str, Make] = {
    "no sequence": lambda: nn.Linear(5, 3),
    "one of its own": lambda: type("Own", (nn.Sequential,), {})(nn.Linear(5, 3)),
    "dropout": lambda: nn.Sequential(nn.Linear(5, 3), nn.Dropout()),
    "reflecting": lambda: nn.Sequential(nn.Conv2d(4, 2, 3, padding=1, padding_mode="reflect")),
    "a mean of all steps": lambda: nn.Sequential(nn.BatchNorm2d(4, momentum=None)),
    "groups": lambda: nn.Sequential(nn.Conv2d(4, 2, 1), nn.GroupNorm(1, 2)),
    "places": lambda: nn.Sequential(nn.MaxPool2d(2, return_indices=True)),
    "flat in a way of its own": lambda: nn.Sequential(type("Flat", (nn.Flatten,), {})()),
    "hooks of a layer": lambda: hooked(whole=False),
    "hooks of a sequence": lambda: hooked(whole=True),
    "flat in part": lambda: nn.Sequential(nn.Flatten(1, 2)),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", SEQUENCES)
def test_a_sequence_gives_what_its_clients_give(
    name: str, dtype: torch.dtype, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape = SEQUENCES[name]
    network = Network(make, dtype)
    variables = trees.stack([network.init(seed) for seed in range(CLIENTS)])
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(CLIENTS, 4, *shape, dtype=dtype, generator=draw)
    call = passed(network, training)
    alone = [with_gradients(call, trees.take(variables, k), x[k]) for k in range(CLIENTS)]
    monkeypatch.setattr(nn.Sequential, "forward", lambda *_: pytest.fail("layer by layer"))
    stacked, slopes = with_gradients(trees.vmap(call, (0, 0)), variables, x)
    equal(trees.leaves(stacked), [trees.leaves(found) for found, _ in alone], dtype)
    equal(slopes, [own for _, own in alone], dtype)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_more_than_a_sequence_is_none(name: str) -> None:
    assert LayerSequence.from_module(OTHERS[name](), channels_last=True) is None


def test_what_is_to_be_done_between_layers_is_done() -> None:
    network = Network(SEQUENCES["numbers"][0], torch.float64)
    variables = trees.stack([network.init(seed) for seed in range(CLIENTS)])
    x = torch.randn(CLIENTS, 4, 5, dtype=torch.float64)
    network.alter(["1"])

    def outputs(variables: trees.Tree, batch: trees.Tree) -> dict[str, Any]:
        found = network.train(variables["params"], {}, batch["x"], alter={"1": lambda y: 0 * y})
        return {"outputs": found.outputs}

    given = trees.vmap(outputs, (0, 0))(variables, {"x": x})["outputs"]
    torch.testing.assert_close(given, variables["params"]["2.bias"][:, None].expand_as(given))


def far_from_one(outputs: Tensor, label: Tensor) -> Tensor:
    return ((outputs.flatten(1).sum(1) - label) ** 2).sum()


@pytest.mark.parametrize("name", ["numbers", "images as numbers", "one layer twice", "in place"])
def test_squared_gradients_are_those_of_each_sample(name: str) -> None:
    """By hand for linear layers, and by autograd for the others; of one client, and of a stack."""
    make, shape = SEQUENCES[name]
    network = Network(make, torch.float64)
    variables = trees.stack([network.init(seed) for seed in range(CLIENTS)])
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(CLIENTS, 4, *shape, dtype=torch.float64, generator=draw)
    y = torch.randn(CLIENTS, 4, dtype=torch.float64, generator=draw)

    def squares(variables: trees.Tree, batch: trees.Tree) -> dict[str, Tensor]:
        params, buffers = variables["params"], variables["buffers"]
        return {
            "squares": network.squared_gradients(
                params, buffers, batch["x"], batch["y"], far_from_one
            )
        }

    def of_sample(client: int, sample: int) -> Tensor:
        own = trees.take(variables, client)
        params = trees.apply(lambda w: w.clone().requires_grad_(), own["params"])
        outputs = network.eval(params, own["buffers"], x[client, sample][None]).outputs
        slopes = torch.autograd.grad(
            far_from_one(outputs, y[client, sample][None]), trees.leaves(params)
        )
        return torch.stack([slope.square().sum() for slope in slopes]).sum()

    expected = torch.stack(
        [torch.stack([of_sample(k, i) for i in range(4)]) for k in range(CLIENTS)]
    )
    stacked = trees.vmap(squares, (0, 0))(variables, {"x": x, "y": y})["squares"]
    torch.testing.assert_close(stacked, expected)
    alone = squares(trees.take(variables, 1), {"x": x[1], "y": y[1]})["squares"]
    torch.testing.assert_close(alone, expected[1])
