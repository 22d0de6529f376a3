"""Functions of PyTorch as models call them, replaced while a model is trained.

What modules draw by these functions (dropout, attention) is drawn by keys
instead, see `fl.pytorch.keyed`. Where gradients are nested, operations for which PyTorch is wrong
or has no derivative are computed in another way. The names in PyTorch's own modules are replaced,
so that every caller gets the replacement: `nn.Dropout`, `nn.MultiheadAttention`, a forward that
calls ``F.dropout``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from fl.pytorch.draws import Draws


def _checked(p: float) -> None:
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def _dropout(
    batched: int | None,
    draws: Draws,
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Tensor:
    """batched: None drops elements; otherwise channels, of inputs of so many dimensions at least
    (with fewer there is no dimension of samples).
    """
    _checked(p)
    if not training or not p:
        return input
    dims = None if batched is None else 2 if input.dim() >= batched else 1
    return draws.drop(input, p, inplace, dims)


_fused = F.scaled_dot_product_attention


def _attention(
    draws: Draws,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(Q K' scale + mask) V, with weights dropped.

    In plain arithmetic, because PyTorch's own function draws numbers that cannot be keyed, has no
    second derivative, and on a CPU no rule for a stack of clients.
    """
    draws.wanted = True
    if not dropout_p and not draws.nested and query.device.type != "cpu":
        return _fused(
            query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if enable_gqa:
        key, value = (
            t.repeat_interleave(query.shape[-3] // t.shape[-3], dim=-3) for t in (key, value)
        )
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.transpose(-2, -1) * scale
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = scores.softmax(dim=-1)
    if dropout_p:
        _checked(dropout_p)
        weights = draws.drop(weights, dropout_p)
    return weights @ value


_attending = FunctionType(
    F.multi_head_attention_forward.__code__,
    F.__dict__,
    "_attending",
    F.multi_head_attention_forward.__defaults__,
)


def _heads(draws: Draws, *args: Any, **kwargs: Any) -> Any:
    """PyTorch's, by a name that the compiler does not know: it then looks into it, and finds what
    is replaced there.
    """
    return _attending(*args, **kwargs)


def _stochastic_depth(
    draws: Draws, input: Tensor, p: float, mode: str, training: bool = True
) -> Tensor:
    """Torchvision's: without whole samples (`row`), or all of them at once (`batch`)."""
    if not training or not p:
        return input
    return draws.drop(input, p, dims=1 if mode == "row" else 0)


_layer = F.layer_norm


def _normalised(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A normalisation of channels in two steps, normalising and scaling, where gradients are
    nested: the derivative of a derivative of both in one is wrong under vmap (torch 2.13, found by
    the contract that stacked equals loop); in two steps it is right. So it is with layers.
    """

    def call(
        draws: Draws,
        input: Tensor,
        running_mean: Tensor | None = None,
        running_var: Tensor | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        *rest: Any,
        **given: Any,
    ) -> Tensor:
        if not draws.nested or weight is None:
            return function(input, running_mean, running_var, weight, bias, *rest, **given)
        shape = (-1, *[1] * (input.dim() - 2))
        x = input.to(weight.dtype)
        x = function(x, running_mean, running_var, None, None, *rest, **given)
        x = x * weight.reshape(shape)
        return x if bias is None else x + bias.reshape(shape)

    return call


def _layer_norm(
    draws: Draws,
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    if not draws.nested or weight is None:
        return _layer(input, normalized_shape, weight, bias, eps)
    x = _layer(input.to(weight.dtype), normalized_shape, None, None, eps) * weight
    return x if bias is None else x + bias


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "dropout": partial(_dropout, None),
    "dropout1d": partial(_dropout, 3),
    "dropout2d": partial(_dropout, 3),
    "dropout3d": partial(_dropout, 5),
    "scaled_dot_product_attention": _attention,
    "multi_head_attention_forward": _heads,
    "batch_norm": _normalised(F.batch_norm),
    "layer_norm": _layer_norm,
    "instance_norm": _normalised(F.instance_norm),
    "stochastic_depth": _stochastic_depth,
}


def _places() -> list[tuple[Any, str]]:
    """The modules in which the functions are looked up when they are called."""
    places: list[tuple[Any, str]] = [(F, name) for name in _FUNCTIONS if hasattr(F, name)]
    # A model can have torchvision's layers only where it is imported already.
    if depth := sys.modules.get("torchvision.ops.stochastic_depth"):
        places.append((depth, "stochastic_depth"))
    return places


@contextmanager
def replaced(draws: Draws) -> Iterator[None]:
    """A context in which the functions draw from ``draws``, wherever in this process they are
    called.
    """
    replaced_functions = [(place, name, getattr(place, name)) for place, name in _places()]
    try:
        for place, name, _ in replaced_functions:
            setattr(place, name, partial(_FUNCTIONS[name], draws))
        yield
    finally:
        for place, name, function in replaced_functions:
            setattr(place, name, function)


def calls(layer: nn.Module) -> bool:
    """Whether a module draws by one of the replaced functions, or computes attention."""
    return isinstance(layer, (_DropoutNd, nn.MultiheadAttention, *_depths()))


def draws_numbers(layer: nn.Module) -> bool:
    """Whether a module draws random numbers in training mode."""
    if isinstance(layer, nn.MultiheadAttention):
        return bool(layer.dropout)
    return bool(calls(layer) and layer.p)


def _depths() -> tuple[type[nn.Module], ...]:
    torchvision = sys.modules.get("torchvision")
    return (torchvision.ops.StochasticDepth,) if torchvision else ()
