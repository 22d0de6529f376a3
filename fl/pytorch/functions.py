"""Replacements of PyTorch functions that models call while they are trained.

Functions that draw random numbers (dropout, attention) draw them by keys instead, see
`fl.pytorch.keyed`. Where gradients are nested, operations whose second derivative is missing
or wrong in PyTorch are computed in another way. The names are replaced in PyTorch's own modules, so
that every caller gets the replacement: `nn.Dropout`, `nn.MultiheadAttention`, or a model that calls
``F.dropout``.
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

from fl.pytorch.random_numbers import RandomNumbers


def _check_probability(p: float) -> None:
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def _dropout(
    min_batched_dims: int | None,
    random_numbers: RandomNumbers,
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Tensor:
    """Drop elements or channels; the arguments after the second are those of `F.dropout`.

    If ``min_batched_dims`` is None, elements are dropped, otherwise channels; inputs with fewer
    dimensions have no dimension of samples.
    """
    _check_probability(p)
    if not training or not p:
        return input
    dims = None if min_batched_dims is None else 2 if input.dim() >= min_batched_dims else 1
    return random_numbers.drop(input, p, inplace, dims)


_fused_attention = F.scaled_dot_product_attention


def _attention(
    random_numbers: RandomNumbers,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute softmax(Q K' scale + mask) V with dropout of the attention weights.

    The computation is in plain arithmetic, because PyTorch's own function draws numbers without
    keys, has no second derivative, and on a CPU has no rule for a stack of clients.
    """
    random_numbers.needs_replaced_functions = True
    if not dropout_p and not random_numbers.nested and query.device.type != "cpu":
        return _fused_attention(
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
        _check_probability(dropout_p)
        weights = random_numbers.drop(weights, dropout_p)
    return weights @ value


_multi_head_attention_copy = FunctionType(
    F.multi_head_attention_forward.__code__,
    F.__dict__,
    "_multi_head_attention_copy",
    F.multi_head_attention_forward.__defaults__,
)


def _multi_head_attention(random_numbers: RandomNumbers, *args: Any, **kwargs: Any) -> Any:
    """Call PyTorch's function by a name that the compiler does not know.

    The compiler then traces into the function and finds the replacements.
    """
    return _multi_head_attention_copy(*args, **kwargs)


def _stochastic_depth(
    random_numbers: RandomNumbers, input: Tensor, p: float, mode: str, training: bool = True
) -> Tensor:
    """Drop single samples (mode `row`) or the whole batch (mode `batch`), as torchvision does."""
    if not training or not p:
        return input
    return random_numbers.drop(input, p, dims=1 if mode == "row" else 0)


_original_layer_norm = F.layer_norm


def _channel_norm(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a normalisation of channels that normalises and scales in two steps.

    Two steps are used where gradients are nested: the second derivative of the single step is wrong
    under vmap (torch 2.13, found by the test that stacked clients equal a loop). `_layer_norm` does
    the same.
    """

    def call(
        random_numbers: RandomNumbers,
        input: Tensor,
        running_mean: Tensor | None = None,
        running_var: Tensor | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        *arguments: Any,
        **keyword_arguments: Any,
    ) -> Tensor:
        if not random_numbers.nested or weight is None:
            return function(
                input, running_mean, running_var, weight, bias, *arguments, **keyword_arguments
            )
        shape = (-1, *[1] * (input.dim() - 2))
        x = input.to(weight.dtype)
        x = function(x, running_mean, running_var, None, None, *arguments, **keyword_arguments)
        x = x * weight.reshape(shape)
        return x if bias is None else x + bias.reshape(shape)

    return call


def _layer_norm(
    random_numbers: RandomNumbers,
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    if not random_numbers.nested or weight is None:
        return _original_layer_norm(input, normalized_shape, weight, bias, eps)
    x = _original_layer_norm(input.to(weight.dtype), normalized_shape, None, None, eps) * weight
    return x if bias is None else x + bias


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "dropout": partial(_dropout, None),
    "dropout1d": partial(_dropout, 3),
    "dropout2d": partial(_dropout, 3),
    "dropout3d": partial(_dropout, 5),
    "scaled_dot_product_attention": _attention,
    "multi_head_attention_forward": _multi_head_attention,
    "batch_norm": _channel_norm(F.batch_norm),
    "layer_norm": _layer_norm,
    "instance_norm": _channel_norm(F.instance_norm),
    "stochastic_depth": _stochastic_depth,
}


def _replaceable_names() -> list[tuple[Any, str]]:
    """List the modules and names by which callers look up the functions."""
    names: list[tuple[Any, str]] = [(F, name) for name in _FUNCTIONS if hasattr(F, name)]
    # A model can have torchvision's layers only if torchvision is imported already.
    if module := sys.modules.get("torchvision.ops.stochastic_depth"):
        names.append((module, "stochastic_depth"))
    return names


@contextmanager
def replace_functions(random_numbers: RandomNumbers) -> Iterator[None]:
    """Replace the functions in this process within the context.

    Args:
        random_numbers: The source of their random numbers.
    """
    originals = [(module, name, getattr(module, name)) for module, name in _replaceable_names()]
    try:
        for module, name, _ in originals:
            setattr(module, name, partial(_FUNCTIONS[name], random_numbers))
        yield
    finally:
        for module, name, function in originals:
            setattr(module, name, function)


def uses_replaced_functions(layer: nn.Module) -> bool:
    """Whether a module draws by one of the replaced functions, or computes attention."""
    return isinstance(layer, (_DropoutNd, nn.MultiheadAttention, *_stochastic_depth_types()))


def draws_random_numbers(layer: nn.Module) -> bool:
    """Whether a module draws random numbers in training mode."""
    if isinstance(layer, nn.MultiheadAttention):
        return bool(layer.dropout)
    return bool(uses_replaced_functions(layer) and layer.p)


def _stochastic_depth_types() -> tuple[type[nn.Module], ...]:
    """Return torchvision's layer type; empty if torchvision is not imported."""
    torchvision = sys.modules.get("torchvision")
    return (torchvision.ops.StochasticDepth,) if torchvision else ()
