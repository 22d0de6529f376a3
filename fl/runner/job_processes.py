"""The processes of a job on this machine: how they start, are asked to leave, and end.

A job gets requests to leave from a scheduler (SIGTERM) or a terminal (Ctrl-C).

Several processes of a job find each other by a file that only this user can read, and communicate
over the loopback interface. A request to leave is passed to the first one, which saves everything.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from fl.base.errors import EXIT_INTERRUPTED

SIGNALS = (signal.SIGTERM, signal.SIGINT)
STOP_MESSAGE = "stopping after this round, with the state saved; Ctrl-C again stops at once\n"


MEETING_VARIABLE = "FEDLOOM_MEETING"
"""Environment variable of the processes of a job: the file by which they find each other."""

POLL_SECONDS, GRACE_SECONDS = 0.1, 30.0
"""Seconds between checks of the processes, and seconds before remaining ones are killed."""


class Interruption(BaseException):
    """The job leaves as requested; its state is in a checkpoint.

    It is no `Exception`, so that code that records errors does not catch it.

    Attributes:
        has_finished_round: Whether a round was finished before.
    """

    def __init__(self, location: str, has_finished_round: bool) -> None:
        super().__init__(location)
        self.has_finished_round = has_finished_round

    def __reduce__(self) -> tuple[type[Interruption], tuple[str, bool]]:
        """Return what a pickle keeps."""
        return type(self), (str(self), self.has_finished_round)


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
        Interruption: At the end, if a request came after the last check.
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
    # A signal during the last steps of a bundle must not be lost to the next bundle.
    request.check("after a bundle")


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


def is_team_member() -> bool:
    """Whether this process is one of several processes of a job."""
    return MEETING_VARIABLE in os.environ


def launch(count: int, words: Sequence[str]) -> int:
    """Run a Python command in several processes of this machine.

    Args:
        count: Number of processes.
        words: The command, without ``python``.

    Returns:
        The exit status of the first process; 1 if another process died, which is printed.
    """
    with tempfile.TemporaryDirectory(prefix="fedloom-") as folder:
        # New sessions, so that only this process gets a terminal's Ctrl-C, and passes it on.
        processes = [
            subprocess.Popen(
                [sys.executable, *words],
                env=_environment(rank, count, folder),
                start_new_session=True,
            )
            for rank in range(count)
        ]

        def forward(number: int, frame: FrameType | None) -> None:
            with contextlib.suppress(ProcessLookupError):
                processes[0].send_signal(number)

        with signal_handler(forward):
            while None in (codes := [process.poll() for process in processes]) and not any(codes):
                time.sleep(POLL_SECONDS)
            _end(processes)
    return exit_status({rank: code for rank, code in enumerate(codes) if code})


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the remaining processes.

    The first process may have to save something; the others end when it has ended.
    """
    if processes[0].poll() is None:
        processes[0].terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    while None in [process.poll() for process in processes] and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    for process in processes:
        process.kill()
        process.wait()


def exit_status(failures: Mapping[int, int]) -> int:
    """Return the exit status of the job: that of its first process, unless another one died.

    Args:
        failures: Exit status of each failed process, negative for a signal.
    """
    first = failures.get(0, 0)
    if first == -signal.SIGINT:
        return EXIT_INTERRUPTED
    dead = {rank: code for rank, code in failures.items() if rank or code < 0}
    for rank, code in dead.items():
        event = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        hint = "; memory may have run out" if code == -signal.SIGKILL else ""
        print(f"failed: process {rank} of the job {event}{hint}", file=sys.stderr)
    return 1 if dead else first


def _environment(rank: int, count: int, folder: str) -> dict[str, str]:
    """Return the environment variables of a process: its rank, the code, and the meeting file."""
    code = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.getenv("PYTHONPATH")])]
    variables = {
        "RANK": str(rank),
        "WORLD_SIZE": str(count),
        MEETING_VARIABLE: str(Path(folder) / "meeting"),
        "PYTHONPATH": os.pathsep.join(code),
    }
    # The loopback interface works even if the machine's name does not resolve; Macs call it `lo0`.
    loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if loopback:
        variables["GLOO_SOCKET_IFNAME"] = os.getenv("GLOO_SOCKET_IFNAME", loopback[0])
    return {**os.environ, **variables}
