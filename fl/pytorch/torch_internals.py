"""Private names of PyTorch, which may change without notice; no other module of ``fl`` uses them.

Tested with torch 2.11 (``make test-lowest``) and 2.13. If a newer torch lacks a name, mend it here.
Each description says what the name is used for, and which public names do the same more slowly.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import NoneType
from typing import Any, NamedTuple

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
add_lists_ = torch._foreach_add_
multiply_lists = torch._foreach_mul
divide_lists = torch._foreach_div
lerp_lists = torch._foreach_lerp
addcmul_lists_ = torch._foreach_addcmul_
addcdiv_lists = torch._foreach_addcdiv
sqrt_lists = torch._foreach_sqrt
"""Arithmetic on lists of tensors in few kernels, for the optimizers.

Alternative: a comprehension, which starts a kernel for each tensor.
"""


count_dispatch_modes = torch._C._len_torch_dispatch_stack
"""Return the number of contexts that intercept operations, such as `DispatchMode`.

Alternative: none; products by NumPy would be counted nowhere.
"""


class DispatchMode(TorchDispatchMode):
    """A context that intercepts every operation below autograd and vmap.

    `fl.runner.costs` counts them by it. Alternative:
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


def is_program(layer: nn.Module) -> bool:
    """Whether a layer is the result of `torch.compile`, of its method `compile` or TorchScript.

    Alternative: none; a layer that ``compile`` has changed has no public sign of it.
    """
    is_compiled = type(layer).__name__ == "OptimizedModule" or layer._compiled_call_impl is not None
    return is_compiled or isinstance(layer, torch.jit.ScriptModule)


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
"""Kernels of this module for tensors without data; see `remember_meta_shapes`."""


def remember_meta_shapes() -> None:
    """Let operations on tensors without data remember the layouts of their results.

    PyTorch computes a layout by tens of operations in Python, which take most of the time of a
    rehearsal of a large network (`fl.plan.rehearsal`). Layers of a network, and steps of methods
    that train it, repeat few layouts. Operations that change a tensor in place or return a view,
    and tensors of the compiler, take PyTorch's way. Alternative: PyTorch's own kernels, with the
    same layouts in more than twice the time.
    """
    # This import registers PyTorch's kernels; if it came later, it would replace ours.
    library = importlib.import_module("torch._meta_registrations")
    for key in sorted(library._meta_lib_dont_use_me_use_register_meta._op_impls):
        name = key.split("/")[1]
        packet, _, overload = name.partition(".")
        operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
        schema = operation._schema
        if not schema.is_mutable and all(result.alias_info is None for result in schema.returns):
            kernel = operation.py_kernels[torch._C.DispatchKey.Meta]
            META_LIBRARY.impl(name, _remembering(kernel), allow_override=True)


class UnknownLayoutError(Exception):
    """The error for an argument or a result of which more than a layout may matter."""


def _remembering(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that is asked once for each layout of arguments."""
    result_by_key: dict[object, Any] = {}

    def remember(*arguments: Any, **options: Any) -> Any:
        try:
            key = (_layouts(arguments), _layouts(options.items()) if options else None)
        except UnknownLayoutError:
            return kernel(*arguments, **options)
        if key in result_by_key:
            return _make_result(result_by_key[key])
        result = kernel(*arguments, **options)
        with contextlib.suppress(UnknownLayoutError):
            result_by_key[key] = _result_layout(result)
        return result

    return remember


PLAIN_TYPES = frozenset(
    {int, float, bool, str, NoneType, torch.dtype, torch.device, torch.layout, torch.memory_format}
)
"""Types of arguments of an operation beside tensors and lists."""


def _layouts(values: Iterable[Any]) -> tuple[object, ...]:
    """Return what of arguments decides the layout of a result.

    Raises:
        UnknownLayoutError: For a tensor with data or of the compiler, and for objects such as a
            size of the compiler.
    """
    layouts: list[object] = []
    for value in values:
        kind = type(value)
        if kind is Tensor or kind is nn.Parameter:
            layouts.append(_layout(value))
        elif kind in PLAIN_TYPES:
            layouts.append((kind, value))  # 1 equals True and 1.0, which make other types.
        elif kind is list or kind is tuple:
            layouts.append(_layouts(value))
        else:
            raise UnknownLayoutError
    return tuple(layouts)


class Layout(NamedTuple):
    """The properties of a tensor without data."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype


def _layout(tensor: Tensor) -> Layout:
    """Return the layout of a tensor without data."""
    if not tensor.is_meta or tensor.is_complex():
        raise UnknownLayoutError
    return Layout(tensor.shape, tensor.stride(), tensor.dtype)


def _result_layout(result: Any) -> Any:
    """Return the layout of a result, which is a tensor, nothing, or several of them."""
    if result is None:
        return None
    if type(result) is Tensor:
        return _layout(result)
    if isinstance(result, list | tuple):
        kind = list if isinstance(result, list) else tuple
        return kind(map(_result_layout, result))
    raise UnknownLayoutError


def _make_result(layout: Any) -> Any:
    """Return a new result of a layout."""
    if type(layout) is Layout:
        return torch.empty_strided(layout.shape, layout.strides, dtype=layout.dtype, device="meta")
    return None if layout is None else type(layout)(map(_make_result, layout))


@contextlib.contextmanager
def without_onednn() -> Iterator[None]:
    """Compute without oneDNN in this context.

    Alternative: ``torch.backends.mkldnn.flags(enabled=False)``, which warns of Intel's GPUs.
    """
    was_enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(was_enabled)
