"""Leases: one process at a time for a run, on a file system that several hosts can share.

A lease is a file with the name of its holder. The holder locks the file as long as it lives and
touches it every few seconds. If the lock is free and the file is of this host, the holder has
ended. A holder on another host, or on a disk without locks, counts as ended if nobody touches the
file while another process waits for ``patience`` seconds; clocks of hosts are not compared. So a
live holder can be replaced by mistake, for example after it was suspended. It notices this at its
next touch (`Lease.lost`); until then two processes work on one run. The store is correct without
leases: they only save work.
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
    """Lease that this process holds; a thread touches its file until `release`."""

    def __init__(self, path: Path, handle: int, beat: float) -> None:
        """Start the thread.

        Args:
            path: The file of the lease.
            handle: The open and locked file.
            beat: Seconds between two touches.
        """
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
        """Whether this process still holds the lease; sets `lost` if it does not."""
        if _is_at(self.path, self._handle):
            return True
        if not self.lost and not self._released.is_set():
            log.warning("%s: another process has taken over this run", self.path)
            self.lost = True
        return False

    def release(self) -> None:
        """Stop the thread and remove the file, unless another process holds the lease now."""
        if self._released.is_set():
            return
        self._released.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            if self.check():
                self.path.unlink()
        os.close(self._handle)


def take(
    path: Path, is_finished: Callable[[], bool], beat: float, patience: float, wait: bool = True
) -> Lease | None:
    """Take a lease, and wait while another process holds it; its folder is created.

    Args:
        path: The file of the lease.
        is_finished: Function that returns whether nothing remains to do.
        beat: Seconds between two touches by the holder.
        patience: Seconds without a touch after which a holder counts as ended.
        wait: Whether to wait for a holder that may be alive.

    Returns:
        None as soon as ``is_finished()`` is true, or, without ``wait``, if the holder may be alive.
    """
    last_touch, silence, is_logged = (0, 0), 0.0, False
    # Silence is counted in looks at the file, so that neither a jump of the clock nor a pause of
    # this process or of the file server counts as silence of the holder.
    pause = beat / 10
    while not is_finished():
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # Another process may remove its folder.
            if lease := _claim(path, beat):
                return lease
        touch = _touch_of(path)
        if touch != last_touch:
            last_touch, silence = touch, 0.0
        if silence >= patience:
            log.warning("%s: %s does not respond; taking over", path, holder(path))
            path.unlink(missing_ok=True)
            continue
        if not wait:
            return None
        if not is_logged:
            is_logged = True
            log.info("%s: waiting for %s, which holds it", path, holder(path))
        time.sleep(pause)
        silence += pause
    return None


def holder(path: Path) -> str | None:
    """Return process and host of the holder, as text; None if there is no lease."""
    try:
        content = _parse(path.read_bytes())
    except FileNotFoundError:
        return None
    return f"process {content.get('pid', '?')} on {content.get('host', 'an unknown host')}"


def live_holder(path: Path, patience: float) -> str | None:
    """Return the holder of the lease, as text; None if there is none, or it has ended.

    For display only: silence of a holder on another host is measured by this host's clock.

    Args:
        path: The file of the lease.
        patience: Seconds without a touch after which a holder counts as ended.
    """
    try:
        with path.open("rb") as file:
            is_local = _parse(file.read()).get("host") == socket.gethostname()
            has_ended = is_local and _lock(file.fileno(), fcntl.LOCK_SH)
        is_silent = time.time() - path.stat().st_mtime > patience
    except OSError:
        return None
    return None if has_ended or is_silent else holder(path)


def _claim(path: Path, beat: float) -> Lease | None:
    """Return the lease, if it is free or its holder was a process of this host that has ended."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        locked = _lock(handle, fcntl.LOCK_EX)
        content = os.read(handle, 4096)
        is_orphaned = locked and _parse(content).get("host") == socket.gethostname()
        if locked is not False and (not content or is_orphaned) and _is_at(path, handle):
            if content:
                log.warning("%s: its holder has ended (%s); taking over", path, holder(path))
            os.ftruncate(handle, 0)
            identity = {"host": socket.gethostname(), "pid": os.getpid()}
            os.pwrite(handle, json.dumps(identity).encode(), 0)
            return Lease(path, handle, beat)
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _lock(handle: int, operation: int) -> bool | None:
    """Whether this handle has locked the file; None if the disk has no locks."""
    try:
        fcntl.flock(handle, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _touch_of(path: Path) -> tuple[int, int]:
    """Return inode and time of the lease's file; zeros if there is none."""
    try:
        with path.open("rb") as file:  # Opened, so that NFS asks the server.
            stat = os.fstat(file.fileno())
    except FileNotFoundError:
        return 0, 0
    return stat.st_ino, stat.st_mtime_ns


def _is_at(path: Path, handle: int) -> bool:
    """Whether the open file is the file at ``path``."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _parse(content: bytes) -> dict[str, Any]:
    """Return the content of a lease; {} if it is damaged, so that only its silence counts."""
    try:
        parsed = files.parse_json(content)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
