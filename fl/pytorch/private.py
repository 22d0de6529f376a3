"""Names of PyTorch that it does not promise to keep: they are used here and nowhere else in ``fl``.

Tried on torch 2.11 (``make test-lowest``) and 2.13. If a newer one has lost a name, mend it here;
each says what it is used for, and what does the same by public names alone, if more slowly.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _functorch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode

BatchNorm = _BatchNorm
"""What every layer of batch normalisation is an instance of, for `Network.batch_norm`.

Without it: ``(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)`` and lazy forms.
"""

begin_vmap = _functorch._vmap_increment_nesting
end_vmap = _functorch._vmap_decrement_nesting
add_batch_dim = _functorch._add_batch_dim
remove_batch_dim = _functorch._remove_batch_dim
"""What `torch.func.vmap` is made of, for `fl.api.trees.vmap`.

``begin_vmap(size, "error")`` gives a level, whose random numbers are refused;
``add_batch_dim(tensor, 0, level)`` is a stacked tensor as one element sees it;
``remove_batch_dim(tensor, level, size, 0)`` is a result for all elements; ``end_vmap()`` ends the
innermost level. Without them: `torch.func.vmap`, which takes apart any structure of arguments, and
for that as long as a small model for a step.
"""

is_batched = _functorch.is_batchedtensor
"""Whether a tensor is one element of a stack, which has no memory format of its own.

Without it: the backends say whether they stack.
"""

unwrap_batched = _functorch._unwrap_batched


def only_vmap() -> int | None:
    """The level of vmap, if that is the one transform of `torch.func` at work.

    ``unwrap_batched(tensor, level)`` is the stack of which a tensor is one element there, and the
    dimension that is stacked, None where none is. They are for `fl.pytorch.folding`. Without them:
    the rules that vmap has for these layers, which on a CPU take up to twice as long.
    """
    transform = _functorch.peek_interpreter_stack()
    if (
        transform is None
        or transform.level() > 1
        or transform.key() != _functorch.TransformType.Vmap
    ):
        return None
    return transform.level()


def outside(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function gives outside of all transforms of `torch.func`, for whole stacks: autograd
    functions refuse to be called with these inside, and other operations are told of vmap in vain.

    Without it: PyTorch's own rules for a stack, see `only_vmap`.
    """
    transforms = _functorch.pop_dynamic_layer_stack()
    try:
        return function(*arguments)
    finally:
        _functorch.push_dynamic_layer_stack(transforms)


innermost_transform = _functorch.peek_interpreter_stack
"""The transform of `torch.func` that is at work, or None, for the check of a network's draws.

Without it: the check is made once in `Network.__init__`, outside of all transforms.
"""

add_each = torch._foreach_add
multiply_each = torch._foreach_mul
divide_each = torch._foreach_div
lerp_each = torch._foreach_lerp
addcmul_each_ = torch._foreach_addcmul_
addcdiv_each = torch._foreach_addcdiv
sqrt_each = torch._foreach_sqrt
"""Arithmetic on lists of tensors in few kernels, for the optimizers.

Without them: a comprehension, which starts a kernel for each tensor.
"""


class DispatchMode(TorchDispatchMode):
    """A context that sees every operation below autograd and vmap.

    It is for `fl.pytorch.operations`, which counts them. Without it:
    `torch.utils.flop_counter.FlopCounterMode`, which imports the compiler.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether the compiler is to leave out what is done inside, and is imported to be told."""
        return False


def slots(layer: nn.Module) -> tuple[dict[str, object], dict[str, object]]:
    """The dicts that hold a layer's own parameters and buffers, in which a pass puts others.

    The public alternative is `torch.func.functional_call`, which looks up every name at each call.
    """
    return layer._parameters, layer._buffers  # type: ignore[return-value]


def by_batch(layer: nn.Module) -> bool:
    """Whether a layer normalises by the batch in evaluation mode too: it has no running mean."""
    return isinstance(layer, _BatchNorm) and layer.running_mean is None


def hooked(layer: nn.Module) -> bool:
    """Whether something is called before or after a layer, forward or backward.

    Without it: every model is called layer by layer (`fl.pytorch.sequences`).
    """
    forward = layer._forward_pre_hooks or layer._forward_hooks
    return bool(forward or layer._backward_pre_hooks or layer._backward_hooks)


def compiled(function: Callable[..., Any], options: Mapping[str, bool]) -> Callable[..., Any]:
    """A function as a program of `torch.compile` with options of its compiler, for
    `fl.engine.compiled`. Shapes and numbers are constants.

    Without ``specialize_float``, a number makes PyTorch trace the function a second time. Without
    ``cpp.vec_isa_ok``, three test programs are compiled first, to see whether vectors are
    understood. A compiler that understands none fails later, and `auto` does without it.
    """
    torch._dynamo.config.specialize_float = True
    chosen: dict[str, Any] = {"cpp.vec_isa_ok": True, **options}
    return torch.compile(function, dynamic=False, options=chosen)


META = torch.library.Library("aten", "IMPL", "Meta")
"""Our own kernels for tensors without numbers; see `quick_shapes`."""


def quick_shapes() -> None:
    """Let batch normalisation on the meta device tell shapes at once.

    PyTorch finds them by some twenty operations in Python, most of what a rehearsal of a deep
    network takes (`fl.plan.rehearsal`). Without it: the same shapes, in more than twice the time.
    """
    # Imported first, as it puts kernels of its own there and would replace ours.
    importlib.import_module("torch._decomp")
    META.impl("native_batch_norm", _normalised, allow_override=True)
    META.impl("native_batch_norm_backward", _denormalised, allow_override=True)


def _normalised(x: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, means and inverse deviations by channel; none of these in evaluation mode."""
    training = given[4]
    channels = x.shape[1] if training else 0
    return torch.empty_like(x), x.new_empty(channels), x.new_empty(channels)


def _denormalised(gradient: Tensor, x: Tensor, *given: Any) -> tuple[Tensor | None, ...]:
    """Gradients of what goes in, of the weights and of the shifts, as far as they are wanted."""
    wanted = given[-1]
    sizes = (x.shape, x.shape[1:2], x.shape[1:2])
    made = zip(sizes, wanted, strict=True)
    return tuple(x.new_empty(size) if asked else None for size, asked in made)
