"""Which devices a job computes on: two jobs never take the same GPU unless the user says so."""

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
def claim(
    wanted: str, waiting: Callable[[], None] = lambda: None, count: int = 1
) -> Iterator[list[torch.device]]:
    """The CPU ``count`` times, or as many GPUs of this machine that no other job has claimed; waits
    for them if necessary.

    The claim is a file lock, so it ends with the process, however that ends.

    Args:
        wanted: `auto` (a GPU where there is one), `cpu` or `cuda`.
        waiting: Called while it waits.
        count: Processes of the job, each of which has a GPU of its own.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise FedloomError(
            "config/config.yaml: execution.device: is 'cuda', but torch finds no GPU here. "
            "Allowed: auto, cpu"
        )
    if wanted == "cpu" or not torch.cuda.is_available():
        yield [torch.device("cpu")] * count
        return
    there = torch.cuda.device_count()
    if count > there:
        raise FedloomError(
            f"config/config.yaml: execution.processes: is {count}, each with a GPU, but torch "
            f"finds {there} here. Allowed: up to {there}, or device: cpu"
        )
    told = False
    while True:
        # All at once or none, so that no two jobs wait for each other.
        with contextlib.ExitStack() as stack:
            cards = [stack.enter_context(_lock_file(index).open("w")) for index in range(there)]
            free: list[int] = []
            for index, card in enumerate(cards):
                if len(free) < count and _locked(card):
                    free.append(index)
            if len(free) == count:
                yield [torch.device("cuda", index) for index in free]
                return
        if not told:
            logger.info("%d of %d GPUs are wanted and in use; waiting", count, there)
            told = True
        waiting()
        time.sleep(1.0)


def _locked(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_file(index: int) -> Path:
    card = torch.cuda.get_device_properties(index)
    return Path(tempfile.gettempdir()) / f"fedloom-{getattr(card, 'uuid', index)}.lock"
