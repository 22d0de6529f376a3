"""Start, watch and end the processes of a job on this machine.

The processes find each other by a file that only this user can read, and communicate over the
loopback interface. A request to leave is passed to the first process, which saves everything.
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
from fl.runner.interruption import signal_handler

MEETING_VARIABLE = "FEDLOOM_MEETING"
"""Environment variable of the processes of a job: the file by which they find each other."""

POLL_SECONDS, GRACE_SECONDS = 0.1, 30.0
"""Seconds between checks of the processes, and seconds before remaining ones are killed."""


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
