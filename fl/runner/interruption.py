"""Requests to leave, which a job gets from a scheduler (SIGTERM) or a terminal (Ctrl-C)."""

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
STOP_MESSAGE = "stopping after this round, with the state saved; Ctrl-C again stops at once\n"


class Interruption(BaseException):
    """The job leaves as requested; its state is in a checkpoint.

    It is no `Exception`, so that code that records errors does not catch it.

    Attributes:
        has_finished_round: Whether a round was finished before.
    """

    def __init__(self, location: str, has_finished_round: bool) -> None:
        super().__init__(location)
        self.has_finished_round = has_finished_round


@dataclass
class LeaveRequest:
    """Whether the job was asked to leave.

    Attributes:
        requested: Whether the job was asked to leave.
        has_unsaved_rounds: Whether rounds must be saved before the job leaves.
        has_finished_round: Whether a round was finished.
    """

    requested: bool = False
    has_unsaved_rounds: bool = False
    has_finished_round: bool = False

    def check(self, location: str = "before the next run had begun") -> None:
        """Leave at once if requested; called while waiting and between runs.

        Args:
            location: Where the job leaves, for the message.

        Raises:
            Interruption: If the job was asked to leave.
        """
        if self.requested:
            raise Interruption(location, self.has_finished_round)


@contextlib.contextmanager
def record_leave_requests() -> Iterator[LeaveRequest]:
    """Record requests to leave within the context.

    Yields:
        The request, which changes when a signal arrives.

    Raises:
        KeyboardInterrupt: On Ctrl-C if nothing must be saved, and on a second Ctrl-C.
    """
    request = LeaveRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # Python delivers signals only to the main thread.
        return

    def handle(number: int, frame: FrameType | None) -> None:
        # A compiler may work for minutes before there is anything to save.
        if number == signal.SIGINT and (request.requested or not request.has_unsaved_rounds):
            raise KeyboardInterrupt
        request.requested = True
        if number == signal.SIGINT:
            # `print` is not safe here, because the signal may have interrupted another `print`.
            os.write(2, STOP_MESSAGE.encode())

    with signal_handler(handle):
        yield request


def set_signal_handler(handler: Any) -> None:
    """Set the handler of `SIGNALS`; signals that a shell ignores for background jobs stay ignored.

    Args:
        handler: Function or constant, see `signal.signal`.
    """
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


@contextlib.contextmanager
def signal_handler(handler: Any) -> Iterator[None]:
    """Set the handler of `SIGNALS` within the context; see `set_signal_handler`."""
    previous_handlers = {number: signal.getsignal(number) for number in SIGNALS}
    set_signal_handler(handler)
    try:
        yield
    finally:
        for number, previous_handler in previous_handlers.items():
            signal.signal(number, previous_handler)
