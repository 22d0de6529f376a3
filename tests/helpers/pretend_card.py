"""A card that is none: a device of PyTorch's that computes on the CPU and refuses what a GPU would.

PyTorch keeps a place for the device of somebody else, PrivateUse1. Here it is called ``card``, and
every operation on its tensors comes to `_run`: the CPU does it, on the same memory. Tensors are
real ones, with memory, strides and views of their own, so `torch.func.vmap` and autograd need to
know nothing of this.

What a GPU would refuse is an error: tensors of two devices in one operation, `Tensor.numpy`,
products of matrices of whole numbers, and random numbers that are drawn on the card. What a GPU
would have to finish first is counted, by the line that asks for it: a number or an array read back,
a copy to it, `nonzero`, a mask of which nobody knows how many it chooses (`Card.waits`).

It cannot show rounding, kernels that a GPU lacks, autocast, or `torch.compile`.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

CODE = str(Path(__file__).resolve().parents[2])
"""Lines of this folder's files are what waits are counted by."""

BETWEEN = {
    "_copy_from",
    "_foreach_copy_",
    "index",
    "_unsafe_index",
    "index_put",
    "index_put_",
    "_index_put_impl_",
}
"""Operations that take tensors of two devices; indices, which may lie in host memory."""

ANSWERED = {
    "_local_scalar_dense",
    "_unique2",
    "_linalg_eigh",
    "_linalg_svd",
    "bincount",
    "equal",
    "isin",
    "linalg_eig",
    "linalg_lstsq",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
}
"""Operations whose result, its shape or its success the host must know."""

FLOATS_ALONE = {"addmm", "addmv", "baddbmm", "bmm", "convolution", "dot", "mm", "mv"}
"""Operators that a GPU has for floating-point numbers only."""


@dataclass
class Card:
    """What is asked of the device.

    Attributes:
        waits: How often the host waited, by what asked for it: the operation, and the innermost
            line of `fl` at work.
    """

    waits: Counter[str] = field(default_factory=Counter)

    @contextlib.contextmanager
    def counting(self) -> Iterator[Counter[str]]:
        """Inside, a counter of what is waited for there."""
        before, self.waits = self.waits, Counter()
        try:
            yield self.waits
        finally:
            before.update(self.waits)
            self.waits = before

    def wait(self, operation: str) -> None:
        """The host waits."""
        frame = sys._getframe(1)
        while frame.f_back and not frame.f_code.co_filename.startswith(f"{CODE}/fl/"):
            frame = frame.f_back
        file = frame.f_code.co_filename.removeprefix(f"{CODE}/")
        self.waits[f"{operation} at {file}:{frame.f_lineno}"] += 1


CARD = Card()
NAME = "card"
_HOST, _CARD = 1, 12  # Of DLPack: kDLCPU and kDLExtDev.

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _on(device: int, tensor: Tensor) -> Tensor:
    """A tensor of the same memory and strides on another device.

    It is handed over by DLPack, as between libraries; the device is written into what is handed
    over, after the pointer to the numbers.
    """
    capsule = torch._C._to_dlpack(tensor)
    ctypes.c_int32.from_address(_pointer(capsule, b"dltensor") + 8).value = device
    return torch._C._from_dlpack(capsule)


def _run(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """An operation in which the card has a part."""
    name = operation._schema.name.removeprefix("aten::")
    tensors: list[Tensor] = []
    here: dict[int, Tensor] = {}

    def host(value: Any) -> Any:
        """The argument of the CPU in place of one of the card."""
        if isinstance(value, Tensor):
            tensors.append(value)
            if not _of_card(value):
                return value
            # Where there are no numbers, the CPU gets a tensor that may grow.
            alias = _on(_HOST, value) if value.numel() else torch.empty_like(value, device="cpu")
            here[id(alias)] = value
            return alias
        if isinstance(value, list | tuple):
            return type(value)([host(item) for item in value])
        return (
            torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value
        )

    def back(value: Any) -> Any:
        """The result of the card in place of one of the CPU."""
        if isinstance(value, Tensor):
            if id(value) not in here:
                return _on(_CARD, value)
            ours = here[id(value)]
            if value.shape != ours.shape:
                ours.data = _on(_CARD, value)  # It was given another shape in place.
            return ours
        return type(value)(map(back, value)) if isinstance(value, list | tuple) else value

    given = [host(value) for value in args]
    named = {key: host(value) for key, value in kwargs.items()}
    # Numbers that PyTorch made tensors of come as numbers again.
    for place in _tensors_of(operation):
        if place < len(given) and isinstance(given[place], int | float):
            kind = torch.result_type(given[0], given[place])
            given[place] = torch.scalar_tensor(given[place], dtype=kind)
    _refuse(operation, name, tensors)
    _count(name, args, kwargs, tensors)
    if name == "_copy_from":
        given[1].copy_(given[0])
        return args[1]
    return back(operation(*given, **named))


@cache
def _tensors_of(operation: Any) -> list[int]:
    """The places at which an operation takes a tensor, without the first."""
    kinds = [str(argument.type) for argument in operation._schema.arguments]
    return [place for place, kind in enumerate(kinds) if place and kind == "Tensor"]


def _convolution(*args: Any) -> Any:
    return _run(torch.ops.aten.convolution.default, *args)


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, *args: Any) -> Any:
    bias = [grad.shape[1]]
    return _run(torch.ops.aten.convolution_backward.default, grad, x, weight, bias, *args)


def _of_card(tensor: Tensor) -> bool:
    return tensor.device.type == NAME


def _refuse(operation: Any, name: str, tensors: Sequence[Tensor]) -> None:
    plain = name.rstrip("_")
    if torch.Tag.nondeterministic_seeded in operation.tags:
        raise RuntimeError(f"{name}: random numbers are drawn on the card")
    host = [tensor for tensor in tensors if not _of_card(tensor)]
    if host and name not in BETWEEN:
        # A number in host memory goes along with what is computed element by element.
        alone = torch.Tag.pointwise in operation.tags and not name.startswith("_foreach")
        first = name.endswith("_") and not _of_card(tensors[0])
        if first or not alone or any(tensor.dim() for tensor in host):
            raise RuntimeError(f"{name}: tensors of card:0 and of cpu in one operation")
    if plain in FLOATS_ALONE and not tensors[0].is_floating_point():
        raise RuntimeError(f"{name}: a card has none for {tensors[0].dtype}")


def _count(
    name: str, args: Sequence[Any], kwargs: dict[str, Any], tensors: Sequence[Tensor]
) -> None:
    waits = name in ANSWERED
    if name == "_copy_from":
        source, target = map(_of_card, tensors)
        non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        # Into memory that is not pinned nothing is copied while the host goes on.
        waits = source != target and (not non_blocking or source)
    elif name in BETWEEN:
        lying = [tensor for tensor in args[1] if tensor is not None]
        masks = any(_of_card(t) and t.dtype in (torch.bool, torch.uint8) for t in lying)
        filled = "put" in name and args[2].numel() == 1  # Which is `masked_fill`.
        waits = (masks and not filled) or not all(map(_of_card, lying))
    elif name == "repeat_interleave":
        waits = kwargs.get("output_size") is None
    if waits:
        CARD.wait(name)


def plug_in() -> Card:
    """The card of this process, which has it from then on; beside a GPU PyTorch can have none."""
    if torch.cuda.is_available():
        return CARD
    if torch._C._get_privateuse1_backend_name() != NAME:
        _setup_privateuseone_for_python_backend(NAME)
        _FALLBACK.fallback(_run, "PrivateUse1")
        _OPERATIONS.impl("convolution_overrideable", _convolution, "PrivateUse1")
        _OPERATIONS.impl("convolution_backward_overrideable", _convolution_backward, "PrivateUse1")
    return CARD


_FALLBACK = torch.library.Library("_", "IMPL")
_OPERATIONS = torch.library.Library("aten", "IMPL")
