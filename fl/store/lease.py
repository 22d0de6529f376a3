"""One process at a time for one run, on a file system that several hosts may share.

A lease is a file that names its holder. It appears by a hard link, so that one of several processes
makes it, and its holder touches it every few seconds. It is locked as long as the holder lives.

A process of the same host sees by the lock at once that a holder is over. On another host, where a
lock may be unknown, a holder counts as over if nobody touched its file while the waiter watched for
``patience`` seconds; no clocks are compared. So a live holder can be replaced wrongly, for instance
after it was suspended. It notices at its next touch (`Lease.lost`), and until then two processes
work on one run. The store is right without leases; they save work and guard nothing.
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
        last = _touched(path)
        if last is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if lease := _create(path, beat):
                return lease
            continue
        if last != touched:
            touched, silent = last, 0.0
        name = holder(path)
        if _remove_orphan(path) or (silent >= patience and _remove(path, last)):
            log.warning("%s: its holder is gone (%s); taking over", path, name)
            continue
        if not wait:
            return None
        if not told:
            told = True
            log.info("%s: waiting for %s, which holds it", path, name)
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
        if time.time() - path.stat().st_mtime > patience:
            return None
        handle = _locked(path)
    except OSError:
        return None
    if handle is not None:
        os.close(handle)
        return None
    return holder(path)


def _create(path: Path, beat: float) -> Lease | None:
    """Try to be the one who creates the lease file."""
    draft = files.temporary(path)
    handle = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with contextlib.suppress(OSError):  # Some network file systems have no locks.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        said = {"host": socket.gethostname(), "pid": os.getpid()}
        os.write(handle, json.dumps(said).encode())
        os.link(draft, path)
    except (FileExistsError, FileNotFoundError):  # Another was first, or has removed the folder.
        os.close(handle)
        return None
    except BaseException:
        os.close(handle)
        raise
    finally:
        draft.unlink(missing_ok=True)
    return Lease(path, handle, beat)


def _remove_orphan(path: Path) -> bool:
    """Remove the lease of a process of this host that is over."""
    try:
        handle = _locked(path)
    except OSError:
        return False
    if handle is None:
        return False
    try:  # While this process has the lock of the file, no other can judge it.
        orphaned = _is_at(path, handle)
        if orphaned:
            path.unlink()
        return orphaned
    finally:
        os.close(handle)


def _locked(path: Path) -> int | None:
    """A handle with the lock of the file; None if a process has it, or if one of another host may.

    Raises:
        OSError: If there is no such file, or if locks are unknown here.
    """
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if _parse(os.read(handle, 4096)).get("host") == socket.gethostname():
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
    except BlockingIOError:
        pass
    except OSError:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _remove(path: Path, last: tuple[int, int]) -> bool:
    """Remove a lease that nobody has touched since ``last``."""
    silent = _touched(path) == last
    if silent:
        path.unlink(missing_ok=True)
    return silent


def _touched(path: Path) -> tuple[int, int] | None:
    """Which file the lease is, and when it was touched; None if there is none."""
    try:
        with path.open("rb") as file:  # Opened, so that NFS asks the server.
            stat = os.fstat(file.fileno())
    except FileNotFoundError:
        return None
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
