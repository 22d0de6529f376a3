"""Keeping freed memory in the process.

A step needs the same large tensors as the step before, and so does a model that is tried with one
method after another. By default the C library returns freed ones to the kernel, which fills them
with zeros when they are asked for again; on a CPU that can take longer than the arithmetic
(docs/benchmarks.md).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

TRIM, MAPPED = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's `mallopt`."""

KEPT, LARGEST = 2**31 - 1, 2**30
"""Bytes: what may lie free before it is given back, and from which size on it is at once."""

USUAL = 2**26, 2**25
"""The same as far as glibc lets them grow by itself."""


def keep() -> bool:
    """Tell the C library to keep freed memory; False where it has no such setting (not glibc)."""
    return _tell(KEPT, LARGEST)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """A context in which freed memory is kept; after it, it is given back."""
    keep()
    try:
        yield
    finally:
        if _tell(*USUAL):
            ctypes.CDLL(None).malloc_trim(0)


def _tell(kept: int, largest: int) -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # Another C library; Windows.
        return False
    return bool(mallopt(TRIM, kept)) and bool(mallopt(MAPPED, largest))
