"""Shapes without the arithmetic behind them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from fl.plan.rehearsal import _sparing
from fl.pytorch.sparing import Sparing

LAYERS = {
    "stride": (lambda: nn.Conv2d(16, 32, 3, stride=2, padding=1), (4, 16, 32, 32)),
    "groups": (lambda: nn.Conv2d(16, 32, 3, groups=2, padding="same"), (4, 16, 32, 32)),
    "one axis": (lambda: nn.Conv1d(16, 32, 5, dilation=2), (4, 16, 640)),
    "upwards": (lambda: nn.ConvTranspose2d(16, 32, 2, stride=2), (4, 16, 32, 32)),
    "upwards, unevenly": (
        lambda: nn.ConvTranspose2d(
            *(16, 32, 3), stride=2, padding=1, output_padding=1, groups=2, dilation=2
        ),
        (4, 16, 32, 32),
    ),
    "normalised": (lambda: nn.BatchNorm2d(16, track_running_stats=False), (4, 16, 64, 64)),
    "normalised as it was": (lambda: nn.BatchNorm2d(16).eval(), (4, 16, 64, 64)),
    "each alone": (lambda: nn.InstanceNorm2d(16, affine=True), (4, 16, 64, 64)),
    "pooled": (lambda: nn.MaxPool2d(3, 2, padding=1, ceil_mode=True), (4, 16, 64, 64)),
    "activated": (nn.ReLU, (4, 16, 64, 64)),
    "activated in place": (lambda: nn.Sequential(nn.LeakyReLU(), nn.ReLU(True)), (4, 16, 64, 64)),
    "linear": (lambda: nn.Linear(512, 256), (64, 512)),
    "bmm": (lambda: nn.MultiheadAttention(64, 2, batch_first=True), (4, 64, 64)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_spared_has_the_shape_of_what_is_computed(name: str) -> None:
    make, shape = LAYERS[name]
    layer, x = make(), torch.randn(shape, requires_grad=True)

    def look(variables: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        given = (x, x, x) if name == "bmm" else (x + 0.0,)
        found = functional_call(layer, variables, given)
        return found[0] if isinstance(found, tuple) else found

    own = dict(layer.named_parameters())
    real = look(own, x)
    with Sparing():
        spared = look(own, x)
        gradients = torch.autograd.grad(spared.sum(), [x, *own.values()], allow_unused=True)
        stacked = {key: torch.stack([value, value]) for key, value in own.items()}
        both = vmap(look)(stacked, torch.stack([x, x]))
    assert spared.shape == real.shape and spared.requires_grad
    assert not torch.equal(spared, real), "it was not computed"
    for leaf, gradient in zip([x, *own.values()], gradients, strict=True):
        assert gradient is None or gradient.shape == leaf.shape
    assert both.shape == (2, *real.shape)


def test_what_is_small_or_does_not_fit_is_left_to_pytorch() -> None:
    layer, x = nn.Conv2d(1, 2, 3), torch.randn(1, 1, 5, 5)
    with Sparing():
        assert torch.equal(layer(x), nn.functional.conv2d(x, layer.weight, layer.bias))
        for wrong in (torch.randn(64, 3, 64, 64), torch.randn(64, 1, 2, 2)):
            with pytest.raises(RuntimeError):
                layer(wrong)
        with pytest.raises(RuntimeError):
            torch.ones(2000, 2000) @ torch.ones(1999, 2000)


def test_who_refuses_zeros_is_given_the_values() -> None:
    x = torch.randn(256, 256)

    def picky() -> float:
        found = float((x @ x).abs().sum())
        if not found:
            raise ValueError("nothing there")
        return found

    with Sparing(), pytest.raises(ValueError, match="nothing there"):
        picky()
    assert _sparing(picky) > 0


def test_it_does_not_wait_for_the_compiler() -> None:
    """The import of torch's compiler takes seconds, which a plan would wait for."""
    code = (
        "import sys, torch\nfrom fl.pytorch.sparing import Sparing\n"
        "with Sparing(): torch.ones(300, 300) @ torch.ones(300, 300)\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
