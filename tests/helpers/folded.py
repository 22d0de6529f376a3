"""Passes of a stack of clients through folded layers, beside those of each client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fl.api import trees
from fl.api.network import Network
from fl.api.trees import Tree

CLIENTS = 3
LIMITS = {torch.float64: 1e-12, torch.float32: 1e-4}
IMAGES = (4, 6, 6)
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolution": (lambda: nn.Conv2d(4, 6, 3, stride=2, dilation=2, padding=1), IMAGES),
    "without a bias": (lambda: nn.Conv2d(4, 6, 3, padding="same", bias=False), IMAGES),
    "by group": (lambda: nn.Conv2d(4, 8, 3, groups=2), IMAGES),
    "reflecting": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), IMAGES),
    "one channel": (lambda: nn.Conv2d(1, 1, 1), (1, 3, 3)),
    "pool": (lambda: nn.MaxPool2d(3, 2, padding=1, ceil_mode=True), IMAGES),
    "mean pool": (lambda: nn.AvgPool2d(2, 1, count_include_pad=False, padding=1), IMAGES),
    "whole pool": (
        lambda: nn.Sequential(nn.Conv2d(4, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        IMAGES,
    ),
    "normalised numbers": (lambda: nn.BatchNorm1d(5), (5,)),
    "normalised series": (lambda: nn.BatchNorm1d(5), (5, 7)),
    "normalised images": (lambda: nn.BatchNorm2d(4), IMAGES),
    "normalised volumes": (lambda: nn.BatchNorm3d(4), (4, 2, 3, 2)),
    "linear": (lambda: nn.Linear(5, 3), (5,)),
    "linear without a bias": (lambda: nn.Linear(5, 3, bias=False), (5,)),
    "linear series": (lambda: nn.Linear(5, 3), (7, 5)),
    "nothing learnt": (lambda: nn.BatchNorm2d(4, affine=False), IMAGES),
    "no statistics": (lambda: nn.BatchNorm2d(4, track_running_stats=False), IMAGES),
    "all of them": (
        lambda: nn.Sequential(
            *(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 5)),
        ),
        IMAGES,
    ),
}


def passed(network: Network, training: bool) -> Callable[..., dict[str, Any]]:
    """A pass, and the gradients of what it gives."""
    run = network.train if training else network.eval

    def whole(variables: Tree, batch: Tree) -> dict[str, Any]:
        out = run(variables["params"], variables["buffers"], batch["x"])
        return {"outputs": out.outputs, "buffers": out.buffers}

    return whole


def with_gradients(
    call: Callable[..., Any], variables: Tree, x: Tensor
) -> tuple[dict[str, Any], list[Tensor]]:
    params = trees.apply(lambda t: t.clone().requires_grad_(), variables["params"])
    x = x.clone().requires_grad_()
    found = call({**variables, "params": params}, {"x": x})
    value = (found["outputs"] ** 2).sin().sum()
    return found, list(torch.autograd.grad(value, [*trees.leaves(params), x]))


def equal(stacked: Any, one_by_one: list[Any], dtype: torch.dtype) -> None:
    for many, *each in zip(stacked, *one_by_one, strict=True):
        expected = torch.stack(each).to(many.dtype)
        limit = LIMITS[dtype] * (1 + float(expected.detach().abs().max()))
        torch.testing.assert_close(many, expected, rtol=0, atol=limit)
