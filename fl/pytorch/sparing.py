"""The operations of large layers that are not computed, where only shapes are asked for."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from fl.pytorch.private import DispatchMode

aten = torch.ops.aten

LEAST = 10**6
"""Multiplications from which on an operation is not computed."""

LARGE = LEAST // 16
"""Numbers from which on an operation that takes each a few times is not computed."""


class Sparing(DispatchMode):
    """While it is active, large convolutions, matrix products and pools give zeros of the right
    shape; large batch normalisations and activations give what they are given.

    Everything else is computed. They take most of the time of a large model's pass.
    """

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """An operation below autograd and vmap."""
        found = SPARED[func](func, args) if func in SPARED else None
        if found is not None:
            return found
        return func(*args, **kwargs) if kwargs else func(*args)


def _convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    beyond: list[int],
    groups: int,
) -> Tensor | None:
    """Zeros shaped as the convolution of x, [b, c, ...], with weight, [d, c / groups, ...].

    Transposed, weight is [c, d / groups, ...]. None for what is small, or not to be convolved:
    PyTorch says that best.
    """
    first, second = len(weight), weight.shape[1] * groups
    taken, given = (first, second) if transposed else (second, first)
    if x.shape[1] != taken or x.dtype != weight.dtype:
        return None
    sizes = []
    for i, side in enumerate(weight.shape[2:]):
        step, reach = _at(stride, i), _at(dilation, i) * (side - 1) + 1 - 2 * _at(padding, i)
        long = x.shape[2 + i]
        grown = (long - 1) * step + reach + _at(beyond, i)
        sizes.append(grown if transposed else (long - reach) // step + 1)
    if min(sizes, default=0) < 1 or len(x) * prod(sizes) * weight.numel() < LEAST:
        return None
    return x.new_zeros(len(x), given, *sizes)


def _at(given: list[int], axis: int) -> int:
    return given[axis] if len(given) > 1 else given[0]


def _gradients(args: tuple[Any, ...]) -> tuple[Tensor | None, ...] | None:
    if args[0].numel() <= LEAST // 64:
        return None
    given, x, weight, sizes, wanted = *args[:4], args[-1]
    shapes = (x.shape, weight.shape, sizes)
    return tuple(
        given.new_zeros(shape) if asked else None
        for shape, asked in zip(shapes, wanted, strict=True)
    )


def _normalised(x: Tensor, training: bool) -> tuple[Tensor, Tensor, Tensor]:
    """x, [b, c, ...], as if normalised, and the statistics that are kept for the gradient."""
    kept = x.new_zeros(x.shape[1] if training else 0)
    return x.view(x.shape), kept, kept.clone()


def _pooled(func: Callable[..., Any], x: Tensor, *how: Any) -> tuple[Tensor, ...] | None:
    """Zeros shaped as what a pool makes of x, [b, c, ...]: as one channel shows."""
    if x.dim() < 4 or not len(x):
        return None
    lead = x.shape[:2]
    return tuple(one.new_zeros(*lead, *one.shape[2:]) for one in func(x[:1, :1], *how))


def _product(left: Tensor, right: Tensor) -> Tensor | None:
    """Zeros shaped as [..., n, k] times [..., k, m]; None for what is small or does not fit."""
    fits = left.shape[-1] == right.shape[-2] and left.shape[:-2] == right.shape[:-2]
    if not fits or left.dtype != right.dtype or left.numel() * right.shape[-1] < LEAST:
        return None
    return left.new_zeros(*left.shape[:-1], right.shape[-1])


def _if_large(
    spared: Callable[[Any, tuple[Any, ...]], Any],
) -> Callable[[Any, tuple[Any, ...]], Any]:
    """What is done in place of an operation on many numbers, and None for one on few."""
    return lambda func, args: spared(func, args) if args[0].numel() > LARGE else None


SPARED: dict[Any, Callable[[Any, tuple[Any, ...]], Any]] = {
    aten.convolution.default: lambda _, args: _convolved(*args[:9]),
    aten.convolution_backward.default: lambda _, args: _gradients(args),
    **dict.fromkeys((aten.mm.default, aten.bmm.default), lambda _, args: _product(*args[:2])),
    **dict.fromkeys(
        (aten.addmm.default, aten.baddbmm.default), lambda _, args: _product(*args[1:3])
    ),
    **dict.fromkeys(
        (aten.relu.default, aten.gelu.default, aten.silu.default, aten.leaky_relu.default),
        _if_large(lambda _, args: args[0].view(args[0].shape)),
    ),
    **dict.fromkeys(
        (aten.relu_.default, aten.silu_.default, aten.leaky_relu_.default),
        _if_large(lambda _, args: args[0]),
    ),
    aten.native_batch_norm.default: _if_large(lambda _, args: _normalised(args[0], args[5])),
    aten.max_pool2d_with_indices.default: _if_large(lambda func, args: _pooled(func, *args)),
}
"""By operation, what is given in its place, of it and its arguments; None: it is computed."""
