"""Whether an error says that memory ran out."""

from __future__ import annotations

import torch

SAID = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")
"""How torch words it where it raises a plain `RuntimeError`."""


def exhausted(error: BaseException) -> bool:
    """Whether an exception says that memory, of the machine or of the GPU, ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in SAID)
