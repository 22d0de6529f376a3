"""A word from the first process of a run to the others at work: to leave it, though they do not
listen while they compute.

It is a key in the store in which the processes met.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from torch.distributed import TCPStore  # type: ignore[attr-defined]

Found = TypeVar("Found")

PAUSE = 0.25
"""Seconds between looks, as each takes as long as a step of a small model."""


class Calls:
    """Calls to leave some piece of work, each known by the number of that."""

    def __init__(self) -> None:
        place, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._store = TCPStore(place, port, is_master=False)

    def call(self, number: int) -> None:
        """Tell everyone."""
        self._store.set(_key(number), "")

    def heard(self, number: int) -> Callable[[], bool]:
        """Whether it was told, to be asked after every step."""
        looked = time.monotonic()

        def due() -> bool:
            nonlocal looked
            if time.monotonic() - looked < PAUSE:
                return False
            looked = time.monotonic()
            return bool(self._store.check([_key(number)]))

        return due


def _key(number: int) -> str:
    return f"fedloom/leave/{number}"


def waited(
    receive: Callable[[], Found], due: Callable[[], bool] | None, call: Callable[[], None]
) -> Found:
    """What ``receive`` returns, which waits for others; ``call`` is made while it is ``due``.

    Signals are handled meanwhile, which they are not where a thread waits for a message itself.
    """
    if due is None:
        return receive()
    found: list[Found] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(receive())
        except BaseException as error:
            failed.append(error)

    waiting = threading.Thread(target=run, daemon=True)
    waiting.start()
    while waiting.is_alive():
        waiting.join(PAUSE)
        if waiting.is_alive() and due():
            call()
    if failed:
        raise failed[0]
    return found[0]
