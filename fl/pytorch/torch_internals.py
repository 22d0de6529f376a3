"""Private names of PyTorch, which may change without notice; no other module of ``fl`` uses them.

Tested with torch 2.11 (``make test-lowest``) and 2.13. If a newer torch lacks a name, mend it here.
Each description says what the name is used for, and which public names do the same more slowly.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch._C import _functorch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode

BatchNorm = _BatchNorm
"""Base class of all layers of batch normalisation, for `Network.batch_norm`.

Alternative: ``(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)`` and lazy forms.
"""

begin_vmap = _functorch._vmap_increment_nesting
end_vmap = _functorch._vmap_decrement_nesting
add_batch_dim = _functorch._add_batch_dim
remove_batch_dim = _functorch._remove_batch_dim
"""The functions from which `torch.func.vmap` is built, for `fl.api.trees.vmap`.

``begin_vmap(size, "error")`` begins a level that refuses random numbers, and returns its number;
``add_batch_dim(tensor, 0, level)`` wraps a stack so that operations see one element;
``remove_batch_dim(tensor, level, size, 0)`` unwraps a result; ``end_vmap()`` ends the innermost
level. Alternative: `torch.func.vmap`, which flattens any structure of arguments, and for that takes
as long as a training step of a small model.
"""

is_batched = _functorch.is_batchedtensor
"""Whether a tensor is one element of a stack, which has no memory format of its own.

Alternative: the backends report whether they stack.
"""

unwrap_batched = _functorch._unwrap_batched


def only_vmap() -> int | None:
    """Return the level of vmap if vmap is the only active transform of `torch.func`; else None.

    ``unwrap_batched(tensor, level)`` returns the stack behind a tensor and the stacked dimension,
    which is None if the tensor is not stacked. Both are used by `fl.pytorch.folding`. Alternative:
    vmap's own rules for these layers, which take up to twice as long on a CPU.
    """
    transform = _functorch.peek_interpreter_stack()
    if (
        transform is None
        or transform.level() > 1
        or transform.key() != _functorch.TransformType.Vmap
    ):
        return None
    return transform.level()


def call_outside_transforms(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function outside of all transforms of `torch.func`, with whole stacks.

    Inside transforms, autograd functions refuse whole stacks, and other operations take unneeded
    steps for vmap. Alternative: PyTorch's own rules for a stack, see `only_vmap`.

    Args:
        function: The function.
        arguments: Its arguments, whole stacks.

    Returns:
        The result of the function.
    """
    transforms = _functorch.pop_dynamic_layer_stack()
    try:
        return function(*arguments)
    finally:
        _functorch.push_dynamic_layer_stack(transforms)


innermost_transform = _functorch.peek_interpreter_stack
"""The innermost active transform of `torch.func`, or None; checks of a network need it.

Alternative: the check is made once in `Network.__init__`, outside of all transforms.
"""

add_lists = torch._foreach_add
multiply_lists = torch._foreach_mul
divide_lists = torch._foreach_div
lerp_lists = torch._foreach_lerp
addcmul_lists_ = torch._foreach_addcmul_
addcdiv_lists = torch._foreach_addcdiv
sqrt_lists = torch._foreach_sqrt
"""Arithmetic on lists of tensors in few kernels, for the optimizers.

Alternative: a comprehension, which starts a kernel for each tensor.
"""


class DispatchMode(TorchDispatchMode):
    """A context that intercepts every operation below autograd and vmap.

    `fl.runner.counting` counts them by it. Alternative:
    `torch.utils.flop_counter.FlopCounterMode`, which imports the compiler.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, so that PyTorch does not import its compiler to skip the context."""
        return False


def variable_dicts(layer: nn.Module) -> tuple[dict[str, object], dict[str, object]]:
    """Return the dictionaries of a layer's own parameters and buffers; a pass changes their values.

    Alternative: `torch.func.functional_call`, which looks up every name at each call.
    """
    return layer._parameters, layer._buffers  # type: ignore[return-value]


def always_uses_batch_statistics(layer: nn.Module) -> bool:
    """Whether a layer normalises by the batch also in evaluation, since it has no running mean."""
    return isinstance(layer, _BatchNorm) and layer.running_mean is None


def has_hooks(layer: nn.Module) -> bool:
    """Whether a layer has hooks, forward or backward.

    Alternative: every model is called layer by layer (`fl.pytorch.folding`).
    """
    forward = layer._forward_pre_hooks or layer._forward_hooks
    return bool(forward or layer._backward_pre_hooks or layer._backward_hooks)


def compile_function(
    function: Callable[..., Any], options: Mapping[str, bool]
) -> Callable[..., Any]:
    """Compile a function by `torch.compile`, for `fl.engine.compiled`.

    Shapes and numbers are constants. Without ``specialize_float``, PyTorch traces the function a
    second time for each number. Without ``cpp.vec_isa_ok``, PyTorch first compiles three programs
    to test for vector instructions; a compiler without them fails later, and `auto` then chooses
    another backend.

    Args:
        function: The function.
        options: Further options of the compiler.

    Returns:
        The compiled function.
    """
    torch._dynamo.config.specialize_float = True
    all_options: dict[str, str | int | bool | Callable[..., Any]]
    all_options = {"cpp.vec_isa_ok": True, **options}
    return torch.compile(function, dynamic=False, options=all_options)


META_LIBRARY = torch.library.Library("aten", "IMPL", "Meta")
"""Kernels of this module for tensors without data; see `register_fast_meta_kernels`."""


ARITHMETIC, COMPARISONS = ("add", "sub", "mul", "div"), ("ge", "gt", "le", "lt", "eq")
"""Operations of two tensors, element by element, which have a fast kernel without data."""


def register_fast_meta_kernels() -> None:
    """Register kernels that compute the shapes of frequent operations directly.

    PyTorch computes them by tens of operations in Python, which take most of the time of a
    rehearsal of a large network (`fl.extra.rehearsal`). Tensors of the compiler and less simple
    ones still take PyTorch's way. Alternative: PyTorch's own kernels, with the same shapes in more
    than twice the time.
    """
    # This import registers PyTorch's kernels; if it came later, it would replace ours.
    importlib.import_module("torch._decomp")
    META_LIBRARY.impl("native_batch_norm", _batch_norm_shapes, allow_override=True)
    META_LIBRARY.impl(
        "native_batch_norm_backward", _batch_norm_gradient_shapes, allow_override=True
    )
    for name in (*ARITHMETIC, *COMPARISONS):
        original = _meta_kernel(getattr(torch.ops.aten, name).Tensor)
        shapes = partial(_pointwise_shape, original, None if name in ARITHMETIC else torch.bool)
        META_LIBRARY.impl(f"{name}.Tensor", shapes, allow_override=True)
    stack = partial(_stack_shape, _meta_kernel(torch.ops.aten.stack.default))
    META_LIBRARY.impl("stack", stack, allow_override=True)


def _meta_kernel(operation: torch._ops.OpOverload) -> Callable[..., Any]:
    """Return PyTorch's own kernel of an operation for tensors without data."""
    kernel: Callable[..., Any] = operation.py_kernels[torch._C.DispatchKey.Meta]
    return kernel


def _is_plain(x: object) -> TypeGuard[Tensor]:
    """Whether this is a tensor of fractions without gaps in memory, and none of the compiler."""
    if type(x) is not Tensor or not x.is_meta or not x.is_floating_point():
        return False
    last = sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    return x.is_contiguous() or last + 1 == x.numel()


def _pointwise_shape(
    original: Callable[..., Tensor], dtype: torch.dtype | None, x: Any, y: Any, **options: Any
) -> Tensor:
    """Return the result of an operation on a tensor and a number, or two tensors of one layout.

    Args:
        original: PyTorch's own kernel, for all others.
        dtype: Type of the result; None: that of the tensor.
        x: A tensor.
        y: A number or another tensor.
        options: Options of the operation, which decide no shape.
    """
    if _is_plain(x) and (
        isinstance(y, int | float)
        or (_is_plain(y) and x.dtype == y.dtype and x.shape == y.shape and x.stride() == y.stride())
    ):
        return torch.empty_strided(x.shape, x.stride(), dtype=dtype or x.dtype, device=x.device)
    return original(x, y, **options)


def _stack_shape(original: Callable[..., Tensor], tensors: list[Tensor], dim: int = 0) -> Tensor:
    """Return a stack of contiguous tensors of one shape; PyTorch's own kernel makes all others."""
    first = tensors[0]
    if dim == 0 and all(
        _is_plain(x) and x.is_contiguous() and x.shape == first.shape and x.dtype == first.dtype
        for x in tensors
    ):
        return first.new_empty((len(tensors), *first.shape))
    return original(tensors, dim)


def _batch_norm_shapes(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs, and means and inverse deviations by channel (none in evaluation mode)."""
    training = arguments[4]
    channels = x.shape[1] if training else 0
    return torch.empty_like(x), x.new_empty(channels), x.new_empty(channels)


def _batch_norm_gradient_shapes(
    gradient: Tensor, x: Tensor, *arguments: Any
) -> tuple[Tensor | None, ...]:
    """Return the gradients of inputs, weights and shifts; None where no gradient is needed."""
    output_mask = arguments[-1]
    sizes = (x.shape, x.shape[1:2], x.shape[1:2])
    return tuple(
        x.new_empty(size) if is_needed else None
        for size, is_needed in zip(sizes, output_mask, strict=True)
    )
