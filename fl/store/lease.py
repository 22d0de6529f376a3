"""One process at a time for one run, on a file system that several hosts may share.

A lease is a file that names its holder, who locks it as long as it lives and touches it every few
seconds. Where the lock can be had and the file is of this host, the holder is over. Of a holder on
another host, or where a disk has no locks, silence tells: it counts as over if nobody touched the
file while the waiter watched for ``patience`` seconds; no clocks are compared. So a live holder can
be replaced wrongly, for instance after it was suspended. It notices at its next touch
(`Lease.lost`), and until then two processes work on one run. The store is right without leases:
they save work and guard nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fl.base import files

log = logging.getLogger(__name__)


class Lease:
    """A lease that this process has; a thread touches its file until `release`."""

    def __init__(self, path: Path, handle: int, beat: float) -> None:
        self.path, self.lost = path, False
        self._handle, self._released = handle, threading.Event()
        self._thread = threading.Thread(target=self._touch, args=(beat,), daemon=True)
        self._thread.start()

    def _touch(self, beat: float) -> None:
        while not self.lost and not self._released.wait(beat):
            with contextlib.suppress(OSError):  # The disk may be away for a while.
                os.utime(self._handle)
                self.check()

    def check(self) -> bool:
        """Whether the lease is still ours; sets `lost` if it is not."""
        if _is_at(self.path, self._handle):
            return True
        if not self.lost and not self._released.is_set():
            log.warning("%s: another process has taken this run over", self.path)
            self.lost = True
        return False

    def release(self) -> None:
        """Stop the thread and remove the file, unless another process has the lease by now."""
        if self._released.is_set():
            return
        self._released.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            if self.check():
                self.path.unlink()
        os.close(self._handle)


def take(
    path: Path, over: Callable[[], bool], beat: float, patience: float, wait: bool = True
) -> Lease | None:
    """Take the lease ``path``, waiting while another process has it; its folder is made.

    Args:
        over: Whether there is nothing left to do.
        beat: Seconds after which the holder touches the file.
        patience: See the module; in seconds.
        wait: If false, do not wait for a holder that may be alive.

    Returns:
        None as soon as ``over()`` is true, or, without ``wait``, if the holder may be alive.
    """
    touched, silent, told = (0, 0), 0.0, False
    # Time is counted in looks that were really taken, so that neither a jump of the clock nor a
    # pause of this process or of the file server counts as silence of the holder.
    pause = beat / 10
    while not over():
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # Its folder may be removed meanwhile.
            if lease := _claim(path, beat):
                return lease
        last = _touched(path)
        if last != touched:
            touched, silent = last, 0.0
        if silent >= patience:
            log.warning("%s: %s is silent; taking over", path, holder(path))
            path.unlink(missing_ok=True)
            continue
        if not wait:
            return None
        if not told:
            told = True
            log.info("%s: waiting for %s, which holds it", path, holder(path))
        time.sleep(pause)
        silent += pause
    return None


def holder(path: Path) -> str | None:
    """Who has the lease, for a message: host and process; None if there is no lease."""
    try:
        said = _parse(path.read_bytes())
    except FileNotFoundError:
        return None
    return f"process {said.get('pid', '?')} on {said.get('host', 'an unknown host')}"


def living(path: Path, patience: float) -> str | None:
    """The holder of the lease, as far as one look shows; None if there is none, or it is gone.

    For display only: whether a holder on another host has been silent for ``patience`` seconds is
    judged by this host's clock.
    """
    try:
        with path.open("rb") as file:
            ours = _parse(file.read()).get("host") == socket.gethostname()
            over = ours and _lock(file.fileno(), fcntl.LOCK_SH)
        silent = time.time() - path.stat().st_mtime > patience
    except OSError:
        return None
    return None if over or silent else holder(path)


def _claim(path: Path, beat: float) -> Lease | None:
    """The lease, if nobody has it or its holder was a process of this host and is over."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        locked = _lock(handle, fcntl.LOCK_EX)
        content = os.read(handle, 4096)
        orphaned = locked and _parse(content).get("host") == socket.gethostname()
        if locked is not False and (not content or orphaned) and _is_at(path, handle):
            if content:
                log.warning("%s: its holder is gone (%s); taking over", path, holder(path))
            os.ftruncate(handle, 0)
            said = {"host": socket.gethostname(), "pid": os.getpid()}
            os.pwrite(handle, json.dumps(said).encode(), 0)
            return Lease(path, handle, beat)
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _lock(handle: int, kind: int) -> bool | None:
    """Whether the file is locked now by this handle; None where the disk has no locks."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _touched(path: Path) -> tuple[int, int]:
    """Which file the lease is, and when it was touched; zeros if there is none."""
    try:
        with path.open("rb") as file:  # Opened, so that NFS asks the server.
            stat = os.fstat(file.fileno())
    except FileNotFoundError:
        return 0, 0
    return stat.st_ino, stat.st_mtime_ns


def _is_at(path: Path, handle: int) -> bool:
    """Whether the open file is the one at ``path``."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _parse(content: bytes) -> dict[str, Any]:
    """What a lease says; nothing if it is damaged, so that only its silence is judged."""
    try:
        said = files.parse_json(content)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
