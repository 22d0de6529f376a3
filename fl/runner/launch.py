"""A job of several processes of this machine: started, watched, and ended together.

They meet in a file that only this user can read, and speak over the loopback interface. A job that
is asked to leave asks its first process, which has all that is to be saved.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from fl.base.errors import EXIT_INTERRUPTED
from fl.runner.leaving import handling

PLACE = "FEDLOOM_MEETING"
"""The variable by which a process of several knows that it is one, and where it meets the
others."""
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

        def forward(number: int, frame: FrameType | None) -> None:
            with contextlib.suppress(ProcessLookupError):
                processes[0].send_signal(number)

        with handling(forward):
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
        return EXIT_INTERRUPTED
    dead = {rank: code for rank, code in failures.items() if rank or code < 0}
    for rank, code in dead.items():
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        more = "; memory may have run out" if code == -signal.SIGKILL else ""
        print(f"failed: process {rank} of the job {how}{more}", file=sys.stderr)
    return 1 if dead else first


def _environment(rank: int, count: int, folder: str) -> dict[str, str]:
    """What tells a process of its place, and where to find code and the others."""
    code = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.getenv("PYTHONPATH")])]
    variables = {
        "RANK": str(rank),
        "WORLD_SIZE": str(count),
        PLACE: str(Path(folder) / "meeting"),
        "PYTHONPATH": os.pathsep.join(code),
    }
    # Whatever the machine's name means to a resolver; a Mac's loopback interface is `lo0`.
    loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if loopback:
        variables["GLOO_SOCKET_IFNAME"] = os.getenv("GLOO_SOCKET_IFNAME", loopback[0])
    return {**os.environ, **variables}
