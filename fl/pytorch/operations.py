"""Counting the operations of matrix products and convolutions, forward and backward.

The formulas are those of `torch.utils.flop_counter.FlopCounterMode`. That class itself imports
PyTorch's compiler at its first use, which takes one or two seconds at the end of every training
job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import flop_registry

from fl.pytorch.torch_internals import DispatchMode

FORMULAS: Mapping[Any, Callable[..., int]] = flop_registry


class OperationCounter(DispatchMode):
    """Counts the operations within the context.

    Attributes:
        total: Floating-point operations so far.
        calls: Operations on tensors so far, whatever their cost.
        read_addresses: Addresses (`storage_address`) of the tensors that operations have read.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = self.calls = 0
        self.read_addresses = set[int]()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Count one operation, or the operations that it consists of."""
        keyword_arguments = dict(kwargs or {})
        with self:
            result = func.decompose(*args, **keyword_arguments)
        if result is not NotImplemented:
            return result
        result = func(*args, **keyword_arguments)
        self.calls += 1
        self.read_addresses.update(
            map(storage_address, _tensors((args, keyword_arguments.values())))
        )
        formula = FORMULAS.get(func.overloadpacket)
        if formula is not None:
            self.total += formula(*args, **keyword_arguments, out_val=result)
        return result


def storage_address(tensor: Tensor) -> int:
    """Return the memory address that a tensor shares with its views while one of them exists."""
    return tensor.untyped_storage().data_ptr()


def _tensors(arguments: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among arguments and in nested lists."""
    for value in arguments:
        if isinstance(value, Tensor):
            yield value
        elif not isinstance(value, (str, Mapping)) and isinstance(value, Iterable):
            yield from _tensors(value)
