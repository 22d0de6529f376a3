"""Keeping freed memory in the process.

A training step needs the same large tensors as the step before. By default the C library returns
freed ones to the kernel, which fills them with zeros when they are asked for again; on a CPU that
can take longer than the arithmetic (docs/benchmarks.md).
"""

from __future__ import annotations

import ctypes

TRIM, MAPPED = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's `mallopt`."""

KEPT, LARGEST = 2**31 - 1, 2**30
"""Bytes: what may lie free before it is given back, and from which size on it is at once."""


def keep() -> bool:
    """Tell the C library to keep freed memory; False where it has no such setting (not glibc)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # Another C library; Windows.
        return False
    return bool(mallopt(TRIM, KEPT)) and bool(mallopt(MAPPED, LARGEST))
