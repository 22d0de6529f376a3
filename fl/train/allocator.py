"""Freed memory that stays with the process.

A step of training asks for the same large tensors as the step before. The C library gives them
back to the kernel each time, which must fill them with zeros each time anew; on a CPU that can take
longer than the arithmetic (docs/benchmarks.md).
"""

from __future__ import annotations

import ctypes

TRIM, MAPPED = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's `mallopt`."""

KEPT, LARGEST = 2**31 - 1, 2**30
"""Bytes: what may lie free before it is given back, and from which size on it is at once."""


def keep() -> bool:
    """Tell the C library to keep what is freed; False where it has no such setting (not glibc)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # Another C library; Windows.
        return False
    return bool(mallopt(TRIM, KEPT)) and bool(mallopt(MAPPED, LARGEST))
