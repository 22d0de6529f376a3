"""The devices of a job: two jobs never use the same GPU."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import torch

from fl.base.errors import FedloomError

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def claim_devices(
    choice: str, while_waiting: Callable[[], None] = lambda: None, count: int = 1
) -> Iterator[list[torch.device]]:
    """Claim a device for each process of a job; wait until enough GPUs of this machine are free.

    The claim is a file lock, so it ends with the process, however that ends.

    Args:
        choice: `auto` (a GPU if the machine has one), `cpu` or `cuda`.
        while_waiting: Function that is called once a second while it waits.
        count: Number of processes of the job, each of which gets its own GPU.

    Yields:
        The CPU ``count`` times, or ``count`` GPUs that no other job has claimed.

    Raises:
        FedloomError: If the machine has too few GPUs.
    """
    if choice == "cuda" and not torch.cuda.is_available():
        raise FedloomError(
            "execution.device: is 'cuda', but torch finds no GPU on this machine",
            "auto, cpu",
        )
    if choice == "cpu" or not torch.cuda.is_available():
        yield [torch.device("cpu")] * count
        return
    gpu_count = torch.cuda.device_count()
    if count > gpu_count:
        raise FedloomError(
            f"execution.processes: is {count}, but torch finds {gpu_count} "
            "GPUs on this machine, and each process needs one",
            f"up to {gpu_count}",
            "set fewer processes, or device: cpu",
        )
    has_logged = False
    while True:
        # Claim all GPUs at once or none, so that no two jobs wait for each other.
        with contextlib.ExitStack() as stack:
            lock_files = [
                stack.enter_context(_lock_path(index).open("w")) for index in range(gpu_count)
            ]
            claimed: list[int] = []
            for index, lock_file in enumerate(lock_files):
                if len(claimed) < count and _try_lock(lock_file):
                    claimed.append(index)
            if len(claimed) == count:
                yield [torch.device("cuda", index) for index in claimed]
                return
        if not has_logged:
            logger.info("waiting for %d of %d GPUs, which other jobs use", count, gpu_count)
            has_logged = True
        while_waiting()
        time.sleep(1.0)


def _try_lock(file: TextIO) -> bool:
    """Lock a file; return False if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_path(index: int) -> Path:
    """Return the lock file of a GPU."""
    card = torch.cuda.get_device_properties(index)
    return Path(tempfile.gettempdir()) / f"fedloom-{getattr(card, 'uuid', index)}.lock"
