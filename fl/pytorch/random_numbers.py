"""The random numbers of one pass through a model, and a check for those drawn in other ways.

Functions of PyTorch that models call are replaced while they are trained. Those that draw random
numbers (dropout, attention) draw them by keys instead, see `fl.pytorch.keyed`. Where gradients are
nested, operations whose second derivative is missing or wrong in PyTorch are computed in another
way. The names are replaced in PyTorch's own modules, so that every caller gets the replacement:
`nn.Dropout`, `nn.MultiheadAttention`, or a model that calls ``F.dropout``.
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
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from fl.base.errors import FedloomError
from fl.pytorch import keyed

MISSING_KEYS = (
    "the model draws random numbers (dropout and the like), and the method trains it without keys; "
    'pass key=batch.get("key") to Network.train'
)
ADVICE = (
    "use nn.Dropout to nn.Dropout3d, or dropout to dropout3d and scaled_dot_product_attention of "
    "torch.nn.functional, called as F.dropout(x, p, self.training). Between layers of an LSTM or a "
    "GRU, use nn.Dropout instead of dropout="
)


class RandomNumbers:
    """The random numbers of one pass; the n-th call of a random layer uses the n-th stream.

    Attributes:
        key: Key of each sample, int64 [b]; None refuses to draw.
        nested: Whether a gradient is taken through a gradient.
        has_drawn: Whether a number was drawn.
        needs_replaced_functions: Whether the pass needs replaced functions for another reason.
    """

    def __init__(self, key: Tensor | None, nested: bool = False) -> None:
        self.key, self.nested = key, nested
        self.has_drawn = self.needs_replaced_functions = False
        self._stream = 0

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        """Draw numbers in [0, 1).

        If the first dimension is that of the batch, or a multiple of it (heads of attention),
        numbers depend on each sample's key; otherwise on one key made of all of them.

        Args:
            shape: Shape of the result.

        Returns:
            Numbers, float64 [*shape].

        Raises:
            FedloomError: If there are no keys.
        """
        if self.key is None:
            raise FedloomError(MISSING_KEYS)
        self.has_drawn = True
        stream, self._stream = self._stream, self._stream + 1
        samples = self.key.shape[0]
        if not shape or shape[0] % samples:
            return keyed.uniform(self.key.sum(), stream, shape)
        numbers = keyed.uniform(self.key, stream, (shape[0] // samples, *shape[1:]))
        return numbers.reshape(shape)

    def keep_mask(self, x: Tensor, p: float, dims: int | None = None) -> Tensor:
        """Draw a mask that is zero with probability p and one otherwise.

        Args:
            x: The tensor that the mask is for.
            p: Probability of zero.
            dims: Number of leading dimensions of x over which the mask is drawn; None: all.

        Returns:
            Mask with the type and the number of dimensions of x; the other dimensions have size 1.
        """
        shape = tuple(x.shape[:dims])
        mask = (self.uniform(shape) >= p).to(x.dtype)
        return mask.reshape(shape + (1,) * (x.dim() - len(shape)))

    def drop(self, x: Tensor, p: float, inplace: bool = False, dims: int | None = None) -> Tensor:
        """Set elements of x to zero with probability p, and scale the others by 1/(1 - p).

        Args:
            x: Input of any shape.
            p: Probability of zero.
            inplace: Whether x itself is changed.
            dims: Number of leading dimensions that are drawn separately; see `keep_mask`.
        """
        factor = self.keep_mask(x, p, dims) / max(1 - p, 1e-12)
        return x.mul_(factor) if inplace else x * factor


def generator_states() -> list[Tensor]:
    """Return the states of PyTorch's shared generators."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *cuda]


def have_generators_changed(initial_states: list[Tensor]) -> bool:
    """Whether PyTorch's shared generators differ from a result of `generator_states`."""
    return not all(map(torch.equal, initial_states, generator_states()))


def outputs_by_keys(
    module: nn.Module, train: Callable[[RandomNumbers], Tensor], draws: RandomNumbers
) -> Tensor:
    """Return the outputs of a pass in training mode, if keys alone decide its random numbers.

    Args:
        module: The model.
        train: Function that makes a pass in training mode.
        draws: The random numbers of the pass; records what it needs of them.

    Raises:
        FedloomError: If the pass draws other random numbers. A run would then depend on the runs
            before it.
    """

    def train_again() -> Tensor:
        return train(RandomNumbers(draws.key))

    initial_states = generator_states()
    outputs, second_outputs = train(draws), train_again()
    if have_generators_changed(initial_states):
        layer = describe_drawing_layer(module, train_again)
        raise FedloomError(
            f"{layer} draws random numbers that do not depend on the batch's keys", advice=ADVICE
        )
    if not torch.equal(outputs.nan_to_num(), second_outputs.nan_to_num()):
        raise FedloomError(
            "the model has two different outputs for the same input and keys", advice=ADVICE
        )
    return outputs


@contextmanager
def no_random_numbers(module: nn.Module, evaluate: Callable[[], object]) -> Iterator[None]:
    """Refuse random numbers that a model draws in a pass in evaluation mode within the context.

    Args:
        module: The model.
        evaluate: Function that makes such a pass again, to find the layer that draws.

    Raises:
        FedloomError: If numbers were drawn.
    """
    initial_states = generator_states()
    yield
    if have_generators_changed(initial_states):
        raise FedloomError(
            f"{describe_drawing_layer(module, evaluate)} draws random numbers in evaluation mode",
            advice="draw random numbers in training mode only",
        )


def describe_drawing_layer(module: nn.Module, run: Callable[[], object]) -> str:
    """Describe the innermost layer in which a pass draws from PyTorch's shared generators.

    Args:
        module: The model.
        run: Function that makes a pass through the model.

    Returns:
        ``the model's layer 'a.b' (Type)``, or ``the model`` if no layer draws.
    """
    descriptions: list[str] = []
    states_at_entry: list[list[Tensor]] = []
    names = {layer: name for name, layer in module.named_modules()}

    def enter(layer: nn.Module, inputs: object) -> None:
        states_at_entry.append(generator_states())

    def leave(layer: nn.Module, inputs: object, output: object) -> None:
        if have_generators_changed(states_at_entry.pop()):
            name, class_name = names.get(layer, ""), type(layer).__name__
            descriptions.append(
                f"the model's layer {name!r} ({class_name})"
                if name
                else f"the model ({class_name})"
            )

    hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return descriptions[0] if descriptions else "the model"


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
