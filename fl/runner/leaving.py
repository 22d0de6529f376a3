"""A training job that is asked to leave: by a scheduler (SIGTERM), or at a terminal (Ctrl-C)."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)
STOPPING = "stopping after this round, with the state saved; Ctrl-C again stops at once\n"


class Interrupted(BaseException):
    """The job was asked to leave; its state is in a checkpoint. No error: nothing catches it that
    places or records these.

    Attributes:
        rounds: Whether a round was finished before.
    """

    def __init__(self, location: str, rounds: bool) -> None:
        super().__init__(location)
        self.rounds = rounds


@dataclass
class Leaving:
    """Whether the job was asked to leave.

    Attributes:
        asked: Whether to leave.
        begun: Whether there are rounds that have to be saved.
        rounds: Whether a round was finished.
    """

    asked: bool = False
    begun: bool = False
    rounds: bool = False

    def now(self, location: str = "before the next run had begun") -> None:
        """Leave at once, if asked and nothing has to be saved: for waits, and between runs."""
        if self.asked:
            raise Interrupted(location, self.rounds)


@contextlib.contextmanager
def asked_to_leave() -> Iterator[Leaving]:
    """A context in which signals are recorded.

    Raises:
        KeyboardInterrupt: On Ctrl-C where nothing has to be saved, and on a second one.
    """
    leaving = Leaving()
    if threading.current_thread() is not threading.main_thread():
        yield leaving  # Python gives signals to the main thread alone.
        return

    def note(number: int, frame: FrameType | None) -> None:
        # A compiler may be at work for minutes before there is anything to save.
        if number == signal.SIGINT and (leaving.asked or not leaving.begun):
            raise KeyboardInterrupt
        leaving.asked = True
        if number == signal.SIGINT:
            os.write(2, STOPPING.encode())  # As `print` may be what the signal came in between of.

    with handling(note):
        yield leaving


def listen(handler: Any) -> None:
    """Handle what asks a job to leave; a job in the background of a shell knows no Ctrl-C."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


@contextlib.contextmanager
def handling(handler: Any) -> Iterator[None]:
    """A context in which `listen` holds."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    listen(handler)
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)
