"""A file over HTTP, however often the connection breaks.

What has arrived lies in ``.<name>.partial`` beside the target, with a record of the version that it
is a part of. A later attempt, in this process or another, asks for the rest on the condition that
the version is still the same (RFC 9110, Range and If-Range), and starts again where it is not.

No library: pooch fetches a broken file from its first byte again, and urllib3's retries end where
the body of the answer begins.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl.base.errors import DataError
from fl.base.files import disk_errors
from fl.base.version import VERSION

log = logging.getLogger(__name__)

CHUNK = 1 << 20
TIMEOUT = 60.0
"""Seconds without a byte after which a server counts as silent."""
ATTEMPTS = 6
"""Attempts in a row that bring no byte before a server is given up."""
PAUSE = 1.0
"""Seconds before the second attempt; every further fruitless one doubles it."""
LONGEST = 60.0
"""Seconds that a pause lasts at most, whatever the server asks for."""
TELL = 10.0
"""Seconds between two lines of progress."""

PASSING = {408, 425, 429, 500, 502, 503, 504}
"""Statuses after which asking again may help."""


@dataclass(frozen=True)
class Partial:
    """What has arrived of a file, and of which version of it."""

    path: Path

    @classmethod
    def of(cls, target: Path) -> Partial:
        """Beside ``target``, the same in every process."""
        return cls(target.with_name(f".{target.name}.partial"))

    @property
    def _note(self) -> Path:
        return self.path.with_name(f"{self.path.name}.json")

    @property
    def size(self) -> int:
        """Bytes that are there."""
        return self.path.stat().st_size if self.path.exists() else 0

    def version(self, url: str) -> str:
        """The ETag or date of what is there, if it came from ``url``, or nothing."""
        try:
            note = json.loads(self._note.read_text())
            return str(note["version"]) if note["url"] == url else ""
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def begin(self, url: str, version: str) -> None:
        """Forget what is there; what comes now is ``version`` of ``url``."""
        self.remove()  # Never truncate: it may be another name of a user's own file.
        self._note.write_text(json.dumps({"url": url, "version": version}) + "\n")
        self.path.touch()

    def remove(self) -> None:
        """Forget what is there."""
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)


class Again(Exception):
    """An attempt that failed in a way that the next one may not; ``after``: seconds, if asked."""

    def __init__(self, reason: object, after: float = 0.0) -> None:
        super().__init__(str(reason))
        self.after = after


def download(url: str, target: Path) -> None:
    """Bring ``url`` into the `Partial` of ``target``, whole, going on from what is there.

    Raises:
        DataError: If the server refuses or stays silent.
        FedloomError: If the disk refuses. In both cases what has arrived stays for the next time.
    """
    partial, failures = Partial.of(target), 0
    while True:
        before = partial.size
        try:
            _attempt(url, partial, target)
            return
        except Again as reason:
            failures = 1 if partial.size > before else failures + 1
            if failures >= ATTEMPTS:
                raise DataError(
                    f"{target}: cannot be fetched from {url} ({reason}; {ATTEMPTS} attempts); the"
                    f" {partial.size:,} bytes that have arrived are kept: start again to go on"
                ) from reason
            pause = min(max(PAUSE * 2 ** (failures - 1), reason.after), LONGEST)
            log.info("%s: %s; again in %.0f s", target.name, reason, pause)
            time.sleep(pause)


def _attempt(url: str, partial: Partial, target: Path) -> None:
    done, version = partial.size, partial.version(url)
    headers = {"User-Agent": f"fedloom/{VERSION}", "Accept-Encoding": "identity"}
    if done and version:
        headers |= {"Range": f"bytes={done}-", "If-Range": version}
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            _receive(response, url, partial, target)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:
            # Nothing is left to send, or another version is shorter: only a fresh start tells.
            partial.remove()
            raise Again("the server has no such part of the file") from error
        if error.code in PASSING:
            raise Again(error, _seconds(error.headers.get("Retry-After"))) from error
        raise DataError(f"{target}: cannot be fetched from {url} ({error})") from error
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as e:
        raise Again(getattr(e, "reason", "") or e or type(e).__name__) from e


def _receive(response: Any, url: str, partial: Partial, target: Path) -> None:
    if response.headers.get_content_type() == "text/html" and ".htm" not in target.name:
        raise DataError(
            f"{target}: {url} answers with a web page, not with the file; open it in a browser to"
            " see what it asks for"
        )
    goes_on = response.status == 206 and _continues(response, partial, url)
    if response.status == 206 and not goes_on:
        partial.remove()
        raise Again("the server sent another part or another version than asked for")
    with disk_errors(partial.path):
        if not goes_on:
            partial.begin(url, _version(response.headers))
        with partial.path.open("ab") as out:
            total = None if response.length is None else partial.size + response.length
            progress = Progress(target.name, partial.size, total)
            while chunk := _read(response):
                out.write(chunk)
                progress.show(len(chunk))
    # A connection that breaks off reads like the end of the file.
    if response.length:
        raise Again(f"the connection ended {response.length:,} bytes early")


def _read(response: Any) -> bytes:
    try:
        return bytes(response.read1(CHUNK))
    except (OSError, http.client.HTTPException) as error:
        raise Again(f"the connection broke: {error or type(error).__name__}") from error


def _continues(response: Any, partial: Partial, url: str) -> bool:
    """Whether an answer is the rest of what is there; some servers do not know If-Range."""
    start = str(response.headers.get("Content-Range", "")).partition("-")[0]
    same = _version(response.headers) in ("", partial.version(url))
    return start == f"bytes {partial.size}" and same


def _version(headers: Any) -> str:
    """What names the version of a file for If-Range: a strong ETag, else the date, or nothing."""
    etag = headers.get("ETag") or ""
    return str(etag if etag.startswith('"') else headers.get("Last-Modified") or "")


def _seconds(text: str | None) -> float:
    """Retry-After, where it is a number; a date is not worth waiting for."""
    with contextlib.suppress(TypeError, ValueError):
        return float(text or 0)
    return 0.0


class Progress:
    """Lines in the log: bytes there, of how many, and how fast they come."""

    def __init__(self, title: str, done: int, total: int | None) -> None:
        self._title, self._first, self._done, self._total = title, done, done, total
        self._begun = self._told = time.monotonic()

    def show(self, more: int) -> None:
        """After ``more`` bytes; says so at most every `TELL` seconds."""
        self._done, now = self._done + more, time.monotonic()
        if now - self._told < TELL:
            return
        self._told = now
        rate = (self._done - self._first) / (now - self._begun) / 1e6
        share = f" of {self._total / 1e6:,.0f} MB" if self._total else " MB"
        log.info("%s: %.0f%s, %.1f MB/s", self._title, self._done / 1e6, share, rate)
