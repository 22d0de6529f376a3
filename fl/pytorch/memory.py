"""Freed memory, which a process that trains or tries models keeps; errors of memory that ran out.

A training step needs the same large tensors as the step before, and so does a model that is tried
with one method after another. By default the C library returns freed memory to the kernel, which
fills it with zeros when it is allocated again. On a CPU that can take longer than the arithmetic
(docs/results/benchmarks.md).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

import torch

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's `mallopt`."""

LARGE_THRESHOLDS = 2**31 - 1, 2**30
"""Bytes of free memory, and bytes of one allocation, above which memory is returned at once."""

GLIBC_THRESHOLDS = 2**26, 2**25
"""The largest values that glibc chooses by itself."""

OUT_OF_MEMORY_TEXTS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "ALLOC_FAILED",
)
"""Texts by which torch reports missing memory in a plain `RuntimeError`."""


def keep_freed_memory() -> bool:
    """Tell the C library to keep freed memory.

    Returns:
        Whether the C library has this setting; only glibc has.
    """
    return _set_thresholds(*LARGE_THRESHOLDS)


@contextlib.contextmanager
def keeping_freed_memory() -> Iterator[None]:
    """Keep freed memory within the context, and return it to the kernel afterwards."""
    keep_freed_memory()
    try:
        yield
    finally:
        if _set_thresholds(*GLIBC_THRESHOLDS):
            return_freed_memory()


def return_freed_memory() -> None:
    """Return memory that is free now to the kernel, if the C library is glibc."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory, of the machine or of the GPU, ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        text in str(error) for text in OUT_OF_MEMORY_TEXTS
    )


def _set_thresholds(trim_bytes: int, mmap_bytes: int) -> bool:
    """Set glibc's thresholds; return False for another C library and on Windows."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(TRIM_THRESHOLD, trim_bytes)) and bool(mallopt(MMAP_THRESHOLD, mmap_bytes))
