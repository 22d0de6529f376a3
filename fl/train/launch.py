"""A job of several processes of this machine: started, watched, and ended together.

They meet in a file that only this user can read, and speak over the loopback interface. A job that
is asked to leave asks its first process, which has all that is to be saved.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from fl.base.errors import INTERRUPTED

PLACE = "FEDLOOM_MEETING"
"""The variable by which a process of several knows that it is one, and where it meets the
others."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
PAUSE, GRACE = 0.1, 30.0
"""Seconds between looks at the processes, and until those that are left are killed."""


def member() -> bool:
    """Whether this process is one of several."""
    return PLACE in os.environ


def launch(count: int, words: Sequence[str]) -> int:
    """Run a command of this Python in ``count`` processes of this machine.

    Args:
        words: The command's, after ``python``.

    Returns:
        The exit status of the first process; 1 if another one died, which is told.
    """
    with tempfile.TemporaryDirectory(prefix="fedloom-") as folder:
        # In sessions of their own, as a terminal's Ctrl-C is for this process to pass on.
        processes = [
            subprocess.Popen(
                [sys.executable, *words],
                env=_environment(rank, count, folder),
                start_new_session=True,
            )
            for rank in range(count)
        ]
        with _forwarding(processes[0]):
            while None in (codes := [process.poll() for process in processes]) and not any(codes):
                time.sleep(PAUSE)
            _end(processes)
    return status({rank: code for rank, code in enumerate(codes) if code})


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the processes that are left. The first may have something to save, and the others end
    when they hear nothing more of it.
    """
    if processes[0].poll() is None:
        processes[0].terminate()
    deadline = time.monotonic() + GRACE
    while None in [process.poll() for process in processes] and time.monotonic() < deadline:
        time.sleep(PAUSE)
    for process in processes:
        process.kill()
        process.wait()


def status(failures: Mapping[int, int]) -> int:
    """The exit status of the job: that of its first process, unless another one died.

    Args:
        failures: By process the exit status of those that failed, negative for a signal.
    """
    first = failures.get(0, 0)
    if first == -signal.SIGINT:
        return INTERRUPTED
    dead = {rank: code for rank, code in failures.items() if rank or code < 0}
    for rank, code in dead.items():
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        more = "; memory may have run out" if code == -signal.SIGKILL else ""
        print(f"failed: process {rank} of the job {how}{more}", file=sys.stderr)
    return 1 if dead else first


def listen(handler: Any) -> None:
    """Handle what asks a job to leave; a job in the background of a shell knows no Ctrl-C."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


@contextlib.contextmanager
def _forwarding(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """A context in which signals go to a process."""

    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    listen(forward)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _environment(rank: int, count: int, folder: str) -> dict[str, str]:
    """What tells a process of its place, and where to find code and the others."""
    code = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.getenv("PYTHONPATH")])]
    variables = {
        "RANK": str(rank),
        "WORLD_SIZE": str(count),
        PLACE: str(Path(folder) / "meeting"),
        "PYTHONPATH": os.pathsep.join(code),
    }
    if Path("/sys/class/net/lo").exists():  # Whatever the machine's name means to a resolver.
        variables["GLOO_SOCKET_IFNAME"] = os.getenv("GLOO_SOCKET_IFNAME", "lo")
    return {**os.environ, **variables}
