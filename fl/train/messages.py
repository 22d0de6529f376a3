"""Trees and plain values between the processes of a run, over `torch.distributed`.

A message is anything of dicts, lists, tuples, text, numbers and tensors. Its shape goes first, then
tensor by tensor, from host memory. Nothing is unpickled but shapes and plain values, by PyTorch's
loader that allows nothing else.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fl.api.trees import Tree
from fl.base.errors import FedloomError
from fl.pytorch.memory import once

HOST = torch.device("cpu")


class Lost(FedloomError):
    """Another process of the run has ended."""


def send(value: Any, to: int) -> None:
    """Send ``value`` to a process."""
    packed, tensors = packing(value)
    shape = _written(packed)
    _each([torch.tensor([len(shape)]), shape, *tensors], lambda part: dist.send(part, to))


def receive(of: int) -> Any:
    """What a process has sent, in host memory."""
    length = torch.zeros(1, dtype=torch.int64)
    _each([length], lambda part: dist.recv(part, of))
    shape = torch.empty(int(length), dtype=torch.uint8)
    _each([shape], lambda part: dist.recv(part, of))
    value, tensors = unpacking(_read(shape), HOST)
    _each(tensors, lambda part: dist.recv(part, of))
    return value


def announced(tree: Any) -> Tensor:
    """The shape of a tree, for those who are to get it by `broadcast`."""
    return _written(packing(tree)[0])


def broadcast(tree: Any, device: torch.device) -> None:
    """Send a tree of the first process to all others, from its device."""
    _each(packing(tree, device)[1], lambda part: dist.broadcast(part, 0))


def heard(shape: Tensor, device: torch.device) -> Any:
    """What the first process sends by `broadcast`, on the device of this one.

    Args:
        shape: As `announced`.
    """
    tree, tensors = unpacking(_read(shape), device)
    _each(tensors, lambda part: dist.broadcast(part, 0))
    return tree


def summed(leaf: Tensor) -> Tensor:
    """The sum over all processes, in the first one; of whole numbers, the largest."""
    total = leaf.contiguous().clone()
    operation = dist.ReduceOp.SUM if leaf.is_floating_point() else dist.ReduceOp.MAX
    _each([total], lambda part: dist.reduce(part, 0, operation))
    return total


def packing(value: Any, device: torch.device = HOST) -> tuple[Any, list[Tensor]]:
    """A message's shape, with tensors that hold nothing, and its tensors in their order."""
    tensors: list[Tensor] = []

    def note(leaf: Tensor) -> Tensor:
        tensors.append(leaf.detach().to(device).contiguous())
        return torch.empty_like(tensors[-1], device="meta")

    return _walk(value, note), tensors


def unpacking(packed: Any, device: torch.device) -> tuple[Any, list[Tensor]]:
    """A message of a shape, still to be filled, and its tensors in their order."""
    tensors: list[Tensor] = []

    def make(leaf: Tensor) -> Tensor:
        tensors.append(torch.empty_like(leaf, device=device))
        return tensors[-1]

    return _walk(packed, make), tensors


def folded(tree: Tree) -> dict[str, Any]:
    """A tree as it is sent where memory layouts count: `unfolded` has its strides, those of 0 too,
    so that whoever goes on from it sums in the same order.
    """
    return {
        key: folded(value) if isinstance(value, dict) else _laid(value)
        for key, value in tree.items()
    }


def _laid(leaf: Tensor) -> list[Any]:
    """A leaf with its axes in the order of memory, that order, and its shape."""
    own = once(leaf)
    order = sorted(range(own.dim()), key=own.stride, reverse=True)
    return [own.permute(order), order, list(leaf.shape)]


def unfolded(sent: Mapping[str, Any]) -> dict[str, Any]:
    """The tree that was sent as `folded`."""
    found = dict[str, Any]()
    for key, value in sent.items():
        if isinstance(value, dict):
            found[key] = unfolded(value)
        else:
            own, order, shape = value
            back = sorted(range(len(order)), key=order.__getitem__)
            found[key] = own.permute(back).expand(shape)
    return found


def _written(packed: Any) -> Tensor:
    buffer = io.BytesIO()
    torch.save(packed, buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def _read(shape: Tensor) -> Any:
    return torch.load(io.BytesIO(shape.numpy().tobytes()), weights_only=True)


def _walk(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _walk(part, change) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_walk(part, change) for part in value)
    return value


def _each(tensors: list[Tensor], do: Callable[[Tensor], Any]) -> None:
    """Do something with every tensor that holds anything.

    Raises:
        Lost: If a connection is gone.
    """
    try:
        for tensor in tensors:
            if tensor.numel():
                do(tensor)
    except RuntimeError as error:
        reason = str(error).strip().split("\n")[0]
        raise Lost(f"another process of this run has ended ({reason})") from error
