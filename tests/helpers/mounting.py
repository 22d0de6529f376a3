"""Mounts that are gone with the block that they were made for, whatever ends it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

# In a process of its own, which sees the end of its input when this one is killed as well.
REMOVE = """
import signal, subprocess, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print(flush=True)
sys.stdin.read()
sys.exit(subprocess.run(["umount", "-l", sys.argv[1]], capture_output=True).returncode)
"""


@contextlib.contextmanager
def mounted(folder: Path, *options: Sequence[str]) -> Iterator[None]:
    """Inside, ``mount`` was called with each of the ``options``; skips the test where it cannot."""
    guard = subprocess.Popen(
        [sys.executable, "-IS", "-c", REMOVE, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert guard.stdin is not None and guard.stdout is not None
    try:
        guard.stdout.readline()
        try:
            for given in options:
                subprocess.run(["mount", *given], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("nothing can be mounted here")
        yield
        guard.stdin.close()
        assert guard.wait(60) == 0, f"{folder} could not be unmounted"
    finally:
        guard.stdin.close()
        guard.wait(60)
        guard.stdout.close()
