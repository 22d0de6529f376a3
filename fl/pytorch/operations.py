"""Counting the operations of matrix products and convolutions, forward and backward.

As `torch.utils.flop_counter.FlopCounterMode` does, by its formulas. That one imports PyTorch's
compiler when it is first used, which takes a second or two at the end of every training job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import flop_registry

from fl.pytorch.private import DispatchMode

FORMULAS: Mapping[Any, Callable[..., int]] = flop_registry


class Operations(DispatchMode):
    """A context that counts.

    Attributes:
        total: Floating-point operations so far.
        calls: Operations on tensors so far, whatever they take.
        read: Storages (`storage`) of the tensors that operations were given so far.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = self.calls = 0
        self.read = set[int]()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Count one operation, or those that it is made of."""
        given = dict(kwargs or {})
        with self:
            parts = func.decompose(*args, **given)
        if parts is not NotImplemented:
            return parts
        out = func(*args, **given)
        self.calls += 1
        self.read.update(map(storage, _tensors((args, given.values()))))
        formula = FORMULAS.get(func.overloadpacket)
        if formula is not None:
            self.total += formula(*args, **given, out_val=out)
        return out


def storage(tensor: Tensor) -> int:
    """Where the numbers of a tensor and of its views are, as long as one of them lives."""
    return tensor.untyped_storage().data_ptr()


def _tensors(given: Iterable[Any]) -> Iterator[Tensor]:
    """Those among arguments, and in lists of them."""
    for value in given:
        if isinstance(value, Tensor):
            yield value
        elif not isinstance(value, (str, Mapping)) and isinstance(value, Iterable):
            yield from _tensors(value)
