"""Freed memory stays with the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

TOUCH = """
import resource, sys, torch
from fl.train import allocator

faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
kept = allocator.keep() if sys.argv[1] == "keep" else True
for _ in range(16):
    torch.ones(2**24)
before = faults()
for _ in range(4):
    torch.ones(2**24)
print(int(kept), faults() - before)
"""


def faults(how: str) -> tuple[int, int]:
    """Whether the setting was taken, and the page faults of four tensors of 64 MiB, one by one."""
    done = subprocess.run(
        [sys.executable, "-c", TOUCH, how], capture_output=True, text=True, check=True
    )
    kept, count = map(int, done.stdout.split())
    return kept, count


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_a_tensor_gets_the_memory_of_the_one_before() -> None:
    (kept, few), (_, many) = faults("keep"), faults("not")
    if not kept:
        pytest.skip("another C library than glibc")
    assert few < 1000 < many
