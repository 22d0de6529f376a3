"""Real processes that die in the middle of what they do."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

# Children are forked from a server that has the slow imports behind it, and no threads.
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    ["fl.store.checkpoint", "fl.store.store", "pyarrow.parquet", "pytest"]
)

STEPS = {"open", "shutil.rmtree"} | {
    f"os.{name}" for name in ("rename", "mkdir", "rmdir", "remove", "link", "scandir", "listdir")
}


def _die_at(step: int, act: Callable[..., Any], *args: Any) -> None:
    """Run ``act`` and kill the process before its ``step``-th touch of the disk."""
    left = step

    def count(event: str, _: Any) -> None:
        nonlocal left
        if event in STEPS:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    act(*args)


def killed_at(step: int, act: Callable[..., Any], *args: Any) -> bool:
    """Run ``act`` in a child that is killed at ``step``; False if it ended before that."""
    child = context.Process(target=_die_at, args=(step, act, *args))
    child.start()
    child.join(300)
    assert child.exitcode in (0, -signal.SIGKILL), f"the child failed: {child.exitcode}"
    return child.exitcode != 0


@contextlib.contextmanager
def running(act: Callable[..., Any], *args: Any) -> Iterator[Any]:
    """A child that runs ``act`` and is killed at the end of the block."""
    child = context.Process(target=act, args=args)
    child.start()
    try:
        yield child
    finally:
        child.kill()
        child.join()
