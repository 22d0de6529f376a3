"""Counting the operations of matrix products and convolutions, forward and backward.

As `torch.utils.flop_counter.FlopCounterMode` does, by its formulas. That one imports PyTorch's
compiler when it is first used, which takes a second or two at the end of every training job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.utils.flop_counter import flop_registry

from fl.pytorch.private import DispatchMode

FORMULAS: Mapping[Any, Callable[..., int]] = flop_registry


class Operations(DispatchMode):
    """A context that counts.

    Attributes:
        total: Floating-point operations so far.
        calls: Operations on tensors so far, whatever they take.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = self.calls = 0

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
        formula = FORMULAS.get(func.overloadpacket)
        if formula is not None:
            self.total += formula(*args, **given, out_val=out)
        return out
