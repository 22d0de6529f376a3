"""Layers that see a whole stack of clients, and not one client, as `torch.func.vmap` shows it.

Layers for images work on each channel alone, or on groups of them: to these a stack is one model of
more channels. vmap folds clients into the channels of a convolution, too, but it scales and shifts
what batch normalisation gives in further passes over memory, and puts clients first before it
pools. Here they stay folded from layer to layer, and in plain models on a CPU with channels last,
which suits all of these layers where there are many. A linear layer is one product that begins with
the bias, where vmap multiplies first and adds then, and its gradient lies in memory as its weights
do, where PyTorch's is transposed: whatever reads one across the other takes several times as long
(docs/benchmarks.md).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.pytorch import private

LAST = (torch.float32, torch.bfloat16)
"""What PyTorch computes by a library that knows channels last."""

POOLS = {nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d}
NORMS = {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d}
POINTWISE = {nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid}
PLAIN = {
    nn.Sequential,
    nn.Conv2d,
    nn.Linear,
    nn.Flatten,
    nn.Identity,
    nn.Dropout,
    nn.Dropout2d,
    *(POOLS | NORMS | POINTWISE),
}
"""Of such layers alone a plain model consists."""

MANY = 8
"""Of so many weights for each number of the images it takes longer to put their channels last than
that saves.
"""


def fold(module: nn.Module) -> bool:
    """Let the layers of a module that can be folded be so wherever they see a stack.

    Returns:
        Whether a stack of it has channels last on a CPU: it has convolutions, and nothing that
        might not understand what vmap then shows it, as group normalisation does not (torch 2.13).
    """
    kinds = {type(layer) for layer in module.modules()}
    last = nn.Conv2d in kinds and kinds <= PLAIN
    for layer in module.modules():
        if type(layer) is nn.Conv2d:
            layer.forward = partial(_convolved, layer, last)  # type: ignore[method-assign]
        elif type(layer) is nn.Linear:
            layer.forward = partial(_linear, layer)  # type: ignore[method-assign]
        elif type(layer) in POOLS:
            layer.forward = partial(_pooled, layer)
        elif type(layer) in NORMS:
            layer.forward = partial(_NORMALISING, layer)
    return last


def whole(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """A function of tensors; where all of them are stacked it is called with the stacks, and so
    must take what has further dimensions in front.
    """
    inside = stacks(*tensors, at=0)
    if inside is None:
        return function(*tensors)
    level, whole_stacks = inside
    return private.add_batch_dim(private.outside(function, *whole_stacks), 0, level)


def _convolved(layer: nn.Conv2d, last: bool, x: Tensor) -> Tensor:
    plain = layer.padding_mode == "zeros" and x.dim() == 4
    inside = stacks(x, layer.weight, layer.bias) if plain else None
    if inside is None:
        return nn.Conv2d.forward(layer, x)
    level, (x, weight, bias) = inside
    clients = len(weight)
    given = convolution(layer, last, x, _flat(weight), _flat(bias), clients)
    return _unfolded(given, clients, level)


def convolution(
    layer: nn.Conv2d, last: bool, x: Tensor, weight: Tensor, bias: Tensor | None, clients: int
) -> Tensor:
    """What the layer gives of `images`, folded as its weight and bias are."""
    few = weight.numel() < MANY * x.numel()
    given: Any = layer.stride, layer.padding, layer.dilation, layer.groups * clients
    return F.conv2d(images(x, last and few), weight, bias, *given)


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    inside = stacks(x, layer.weight, layer.bias, at=0) if x.dim() == 2 else None
    if inside is None:
        return nn.Linear.forward(layer, x)
    level, tensors = inside
    return private.add_batch_dim(private.outside(product, *tensors), 0, level)


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W' + b of each client, from x [clients, b, in], W [clients, out, in], b [clients, out]."""
    if x.device.type != "meta" and torch.is_autocast_enabled(x.device.type):
        # Which chooses types for each operation, backward as well.
        return _product(x, weight, bias)
    inside: Tensor = _Product.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return inside


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return torch.bmm(x, weight.mT)
    return torch.baddbmm(bias.unsqueeze(-2), x, weight.mT)


class _Product(torch.autograd.Function):
    """`product`, whose gradients lie as what they are of."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The product."""
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """What it gives can be differentiated again."""
        x, weight = ctx.saved_tensors
        by_x, by_weight, by_bias = ctx.needs_input_grad
        return (
            torch.bmm(slope, weight) if by_x else None,
            torch.bmm(slope.mT, x) if by_weight else None,
            slope.sum(-2) if by_bias else None,
        )


def _pooled(layer: nn.Module, x: Tensor) -> Any:
    pool = type(layer).forward
    inside = stacks(x) if x.dim() == 4 else None
    if inside is None:
        return pool(layer, x)
    level, (x,) = inside
    pooled = pool(layer, x.flatten(1, 2))
    if isinstance(pooled, tuple):
        return tuple(_unfolded(tensor, x.shape[1], level) for tensor in pooled)
    return _unfolded(pooled, x.shape[1], level)


def _normalised(x: Tensor, *given: Any) -> Tensor:
    """As `torch.nn.functional.batch_norm`; given: running statistics, weight, bias, and more."""
    inside = stacks(x, *given[:4])
    if inside is None:
        return F.batch_norm(x, *given)
    level, (x, *others) = inside
    folded = F.batch_norm(x.flatten(1, 2), *map(_flat, others), *given[4:])
    return _unfolded(folded, x.shape[1], level)


def _flat(stack: Any) -> Any:
    """[clients, channels, ...] as [clients channels, ...]; None stays None."""
    return stack if stack is None else stack.flatten(0, 1)


def stacks(x: Tensor, *others: Tensor | None, at: int = 1) -> tuple[int, list[Any]] | None:
    """The level of vmap, and what it stacks: x [b, clients, channels, ...], the others [clients,
    ...]. None where it does not stack all of them, or is not the only transform.

    Args:
        at: Which dimension of x is that of the clients.
    """
    level = None if torch.compiler.is_compiling() else private.only_vmap()
    if level is None:
        return None
    whole_stacks: list[Tensor | None] = []
    for tensor in (x, *others):
        if tensor is None:
            whole_stacks.append(None)
            continue
        whole, dim = private.unwrap_batched(tensor, level)
        if dim is None:
            return None
        place = 0 if whole_stacks else at
        whole_stacks.append(whole if dim == place else whole.movedim(dim, place))
    return level, whole_stacks


def images(x: Tensor, last: bool) -> Tensor:
    """[b, clients, channels, height, width], or folded already, as [b, clients channels, ...].

    Args:
        last: With channels last, on a CPU and where PyTorch has a library that knows them.
    """
    last = last and x.device.type == "cpu" and x.dtype in LAST
    # So there is one copy at most.
    if x.dim() == 5 and last and x.stride(1) != x.shape[2] * x.stride(2):
        x = x.movedim((1, 2), (-2, -1)).contiguous().movedim((-2, -1), (1, 2))
    chosen = torch.channels_last if last else torch.contiguous_format
    return (x.flatten(1, 2) if x.dim() == 5 else x).contiguous(memory_format=chosen)


def apart(x: Tensor, clients: int) -> Tensor:
    """[b, clients channels, ...] as [b, clients, channels, ...]."""
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        # So its gradient, which is copied where it comes from a layer of another kind, has channels
        # last, too.
        last: Tensor = x.movedim(1, -1).unflatten(-1, (clients, -1))
        return last.movedim((-2, -1), (1, 2))
    apart: Tensor = x.unflatten(1, (clients, -1))
    return apart


def _unfolded(x: Tensor, clients: int, level: int) -> Tensor:
    return private.add_batch_dim(apart(x, clients), 1, level)


def _calling(method: Callable[..., Any], **functions: Callable[..., Any]) -> FunctionType:
    """A method of PyTorch's in which functions of `torch.nn.functional` are others."""
    names = {**method.__globals__, "F": SimpleNamespace(**functions)}
    return FunctionType(method.__code__, names, method.__name__, method.__defaults__)


_NORMALISING = _calling(private.BatchNorm.forward, batch_norm=_normalised)
