"""Freed memory stays with the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

TOUCH = """
import resource, sys, torch
from fl.pytorch import memory

faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
pages = lambda: int(open("/proc/self/statm").read().split()[1])

def touched():
    for _ in range(16):
        torch.ones(2**24)
    before = faults()
    for _ in range(4):
        torch.ones(2**24)
    return faults() - before

kept, begun = True, pages()
if sys.argv[1] == "for a while":
    with memory.keeping_freed_memory():
        count = touched()
else:
    kept = memory.keep_freed_memory()
    count = touched()
print(int(kept), count, pages() - begun)
"""


def faults(how: str) -> tuple[int, int, int]:
    """Whether the setting was taken, the page faults of four tensors of 64 MiB, one by one, and how
    many pages the process has more than before.
    """
    done = subprocess.run(
        [sys.executable, "-c", TOUCH, how], capture_output=True, text=True, check=True
    )
    kept, count, more = map(int, done.stdout.split())
    return kept, count, more


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_a_tensor_gets_the_memory_of_the_one_before() -> None:
    kept, few, more = faults("keep")
    if not kept:
        pytest.skip("another C library than glibc")
    assert few < 1000
    _, in_between, left = faults("for a while")
    assert in_between < 1000
    assert left < 10_000 < more, "and is given back"
