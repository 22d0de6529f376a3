"""A job of several processes: started by PyTorch's launcher, watched, and ended together.

The processes are started as `torchrun` starts those of one machine, by
`torch.distributed.elastic.multiprocessing`, and meet in a store that this process keeps. `torchrun`
itself would kill them half a minute after a signal, in the middle of a round that is to be saved,
and ends with a page about itself. A job that is asked to leave asks its first process, which has
all that is to be saved.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from fl.base.errors import INTERRUPTED

MARK = "TORCHELASTIC_RUN_ID"
"""The variable by which PyTorch's launcher tells a process that it is one of several."""
LOOPBACK = "127.0.0.1"
SIGNALLED = 128
"""What a shell adds to the number of the signal that ended a process."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def member() -> bool:
    """Whether this process is one of several, started here or by `torchrun`."""
    return MARK in os.environ


def launch(count: int, words: Sequence[str]) -> int:
    """Run a command of this Python in ``count`` processes of this machine.

    Args:
        words: The command's, after ``python``.

    Returns:
        The exit status of the first process; 1 if another one died, which is told.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, start_processes

    # What it says of ends is said here in one line.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    with _forwarding() as first:
        store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
        context = start_processes(
            "train",
            sys.executable,
            dict.fromkeys(range(count), tuple(words)),
            {rank: _environment(rank, count, store.port) for rank in range(count)},
            DefaultLogsSpecs(os.devnull),
        )
        first.begun(context.pids()[0])
        ended = context.wait(period=0.1)
        failures = ended.failures if ended else {}
        return status({rank: one.exitcode for rank, one in failures.items()})


def status(failures: Mapping[int, int]) -> int:
    """The exit status of the job: that of its first process, unless another one died.

    Args:
        failures: By process the exit status of those that failed, negative for a signal.
    """
    own = failures.get(0, 0)
    # SIGTERM is what the launcher ends those with that are left.
    died = {rank: code for rank, code in failures.items() if code != -signal.SIGTERM}
    dead = {rank: code for rank, code in died.items() if rank or code < 0}
    if own == -signal.SIGINT:
        return INTERRUPTED
    for rank, code in dead.items():
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        more = "; memory may have run out" if code == -signal.SIGKILL else ""
        print(f"failed: process {rank} of the job {how}{more}", file=sys.stderr)
    return 1 if dead else own if own >= 0 else SIGNALLED - own


class _First:
    """The first process, which is told what this one is."""

    def __init__(self) -> None:
        self._process: int | None = None
        self._told: list[int] = []

    def note(self, number: int, frame: FrameType | None) -> None:
        """Pass a signal on, as soon as there is a process."""
        if self._process is None:
            self._told.append(number)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process, number)

    def begun(self, process: int) -> None:
        """The process is there."""
        self._process = process
        listen(self.note)
        for number in self._told:
            self.note(number, None)


def listen(handler: Any) -> None:
    """Handle what asks a job to leave; a job in the background of a shell knows no Ctrl-C."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


@contextlib.contextmanager
def _forwarding() -> Iterator[_First]:
    """A context in which signals go to the first process."""
    first, before = _First(), {number: signal.getsignal(number) for number in SIGNALS}
    listen(first.note)
    # The launcher would listen as well, and end all at once.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"
    try:
        yield first
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _environment(rank: int, count: int, port: int) -> dict[str, str]:
    """What tells a process of its place, and where to find code and the others."""
    code = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.getenv("PYTHONPATH")])]
    found = {
        **{"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count},
        **{"MASTER_ADDR": LOOPBACK, "MASTER_PORT": port, MARK: os.getpid()},
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "PYTHONPATH": os.pathsep.join(code),
    }
    if Path("/sys/class/net/lo").exists():  # Whatever the machine's name means to a resolver.
        found["GLOO_SOCKET_IFNAME"] = os.getenv("GLOO_SOCKET_IFNAME", "lo")
    return {name: str(value) for name, value in found.items()}
