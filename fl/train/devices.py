"""Which device a job computes on: two jobs never take the same GPU unless the user says so."""

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

from fl.errors import FedloomError

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def claim(wanted: str, waiting: Callable[[], None] = lambda: None) -> Iterator[torch.device]:
    """The CPU, or a GPU of this machine that no other job has claimed; waits for one if necessary.

    The claim is a file lock, so it ends with the process, however that ends.

    Args:
        wanted: `auto` (a GPU where there is one), `cpu` or `cuda`.
        waiting: Called while it waits.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise FedloomError(
            "config/config.yaml: execution.device: is 'cuda', but torch finds no GPU here; "
            "allowed: auto, cpu"
        )
    if wanted == "cpu" or not torch.cuda.is_available():
        yield torch.device("cpu")
        return
    with contextlib.ExitStack() as stack:
        cards = [
            stack.enter_context(_lock_file(index).open("w"))
            for index in range(torch.cuda.device_count())
        ]
        told = False
        while True:
            for index, card in enumerate(cards):
                if _locked(card):
                    yield torch.device("cuda", index)
                    return
            if not told:
                logger.info("all %d GPUs are in use by other jobs; waiting", len(cards))
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
