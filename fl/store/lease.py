"""One process at a time for one run, on a file system that several hosts may share.

The holder of a lease is written in a file that appears by a hard link, which is atomic on NFS too.
The holder increments a counter inside that file, always in the same inode: a process that has lost
the lease and wakes up late writes to a file that nobody reads any more.

No clocks are compared. A holder is replaced at once if its process, or the boot of its host, is
known to be over; otherwise if its file has not changed while the waiter watched it for ``patience``
seconds. A live holder can be replaced wrongly, for instance after it was suspended; it notices at
its next beat (`Lease.lost`). Until then two processes work on one run. So the store is right
without leases; they only save work.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fl.base import files

log = logging.getLogger(__name__)


class Lease:
    """A lease that is held; a thread keeps its file alive until `release`."""

    def __init__(self, path: Path, holder: dict[str, Any], handle: int, beat: float) -> None:
        self.path, self.lost = path, False
        self._holder, self._handle, self._count, self._warned = holder, handle, 0, False
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._live, args=(beat,), daemon=True)
        self._thread.start()

    def _live(self, beat: float) -> None:
        while not self.lost and not self._stop.wait(beat):
            self.check(count=1)

    def check(self, count: int = 0) -> bool:
        """Whether the lease is still ours; sets `lost` if it is not."""
        with self._lock:
            try:
                if count and not self._stop.is_set():
                    self._count += count
                    os.pwrite(self._handle, _text(self._holder, self._count), 0)
                    os.fsync(self._handle)
                ours = bool(_nonce(_read(self.path)) == self._holder["nonce"])
            except OSError as error:
                ours = error.errno != errno.ESTALE
                if ours and not self._warned:
                    self._warned = True
                    log.warning("%s: the lease cannot be kept alive for now: %s", self.path, error)
            if not ours and not self.lost and not self._stop.is_set():
                self.lost = True
                log.warning("%s: another process has taken this run over", self.path)
            return ours

    def release(self) -> None:
        """Stop the thread and remove the file, unless another process holds the lease by now."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join()
        os.close(self._handle)
        with contextlib.suppress(OSError):
            content = _read(self.path)
            if content and _nonce(content) == self._holder["nonce"]:
                _withdraw(self.path, content)


def take(
    path: Path, over: Callable[[], bool], beat: float, patience: float, wait: bool = True
) -> Lease | None:
    """Take the lease ``path``, waiting while another process holds it; its folder is made.

    Args:
        over: Whether there is nothing left to do.
        beat, patience: In seconds, see the module.
        wait: If false, do not wait for a holder that may be alive.

    Returns:
        None as soon as ``over()`` is true, or, without ``wait``, if the holder may be alive.
    """
    seen: bytes | None = None
    unchanged, told = 0.0, False
    # Time is counted in looks that were really taken, so that neither a jump of the clock nor a
    # pause of this process or of the file server counts as silence of the holder.
    pause = beat / 10
    while not over():
        content = _read(path)
        if content is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if lease := _create(path, beat):
                return lease
            continue
        if content != seen:
            seen, unchanged = content, 0.0
        if _gone(_parse(content)) or unchanged >= patience:
            log.warning("%s: its holder is gone (%s); taking over", path, _name(content))
            _withdraw(path, content)
            continue
        if not wait:
            return None
        if not told:
            told = True
            log.info("%s: waiting for %s, which holds it", path, _name(content))
        time.sleep(pause)
        unchanged += pause
    return None


def holder(path: Path) -> str | None:
    """Who holds the lease, for a message: host and process; None if there is no lease."""
    content = _read(path)
    return _name(content) if content else None


def living(path: Path, patience: float) -> str | None:
    """The holder of the lease, as far as one look shows; None if there is none, or it is gone.

    For display only: whether a holder on another host has been silent for ``patience`` seconds is
    judged by this host's clock.
    """
    try:
        content, beaten = path.read_bytes(), path.stat().st_mtime
    except OSError:
        return None
    if _gone(_parse(content)) or time.time() - beaten > patience:
        return None
    return _name(content)


def _create(path: Path, beat: float) -> Lease | None:
    """Try to be the one who creates the lease file."""
    me = {**_identity(), "nonce": secrets.token_hex(16)}
    draft = files.temporary(path)
    try:
        with draft.open("xb") as file:
            file.write(_text(me, 0))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        # The answer of a link can be lost on NFS, so the file itself says who created it.
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None  # The folder was just removed, or tidied by a new holder.
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
    if _nonce(os.pread(handle, 4096, 0)) == me["nonce"]:
        return Lease(path, me, handle, beat)
    os.close(handle)
    return None


def _withdraw(path: Path, content: bytes) -> None:
    """Remove the lease file if it still has ``content``.

    Of several processes only one can move the file away. If its content has changed meanwhile, its
    holder is alive (or is a new one), and it is put back.
    """
    aside = files.temporary(path)
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
    if _read(aside) != content:
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            os.link(aside, path)
    aside.unlink(missing_ok=True)


def _gone(holder: dict[str, Any]) -> bool:
    """Whether this host can tell that a holder is certainly over."""
    me = _identity()
    if any(holder.get(key) != me[key] for key in ("host", "machine")):
        return False
    if holder.get("boot") != me["boot"]:
        return bool(holder.get("boot") and me["boot"])
    if holder.get("namespace") != me["namespace"]:
        return False  # Its process has another number here, as in a container.
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return True
    except (OSError, KeyError, TypeError, OverflowError):
        return False
    started = _started(holder["pid"])
    return started is not None and started != holder.get("started")


def _identity() -> dict[str, Any]:
    """What distinguishes this process from every other, as far as the system says."""
    machine = _system("/etc/machine-id")
    namespace = None
    with contextlib.suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return {
        "host": socket.gethostname(),
        # Two hosts may have one name; the number of the machine itself is not for publishing.
        "machine": machine and hashlib.sha256(machine.encode()).hexdigest()[:16],
        "boot": _system("/proc/sys/kernel/random/boot_id"),
        "namespace": namespace,
        "pid": os.getpid(),
        "started": _started(os.getpid()),
    }


def _system(path: str) -> str | None:
    try:
        return Path(path).read_text().strip() or None
    except OSError:
        return None


def _started(pid: int) -> int | None:
    """When a process started, in ticks since boot; -1 if it is dead but not yet reaped."""
    try:
        # The name, in brackets, may itself hold blanks and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return -1 if fields[0] in "ZX" else int(fields[19])


def _text(holder: dict[str, Any], count: int) -> bytes:
    """The lease file, of the same length for every count."""
    return f'{json.dumps(holder)[:-1]}, "counter": {count:12d}}}\n'.encode()


def _read(path: Path) -> bytes | None:
    """The lease file's content, None if there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _parse(content: bytes) -> dict[str, Any]:
    """The holder; empty if the content is damaged, so that only its silence is judged."""
    try:
        holder = files.parse_json(content)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _nonce(content: bytes | None) -> str | None:
    return _parse(content or b"").get("nonce")


def _name(content: bytes) -> str:
    holder = _parse(content)
    return f"process {holder.get('pid', '?')} on {holder.get('host', 'an unknown host')}"
