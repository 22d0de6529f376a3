"""Memory of tensors: whether an error says that it ran out, and what lies in it once."""

from __future__ import annotations

import torch

SAID = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")
"""How torch words it where it raises a plain `RuntimeError`."""


def exhausted(error: BaseException) -> bool:
    """Whether an exception says that memory, of the machine or of the GPU, ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in SAID)


def once(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without what it repeats (a stride of 0): `torch.Tensor.expand` makes it again."""
    return tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())]
