"""A file over HTTP, however often the connection breaks.

After a break the rest is asked for, on the condition that the version is still the same (RFC 9110,
Range and If-Range). What an earlier process left is gone on from where a checksum will tell whether
it was of the same version.

No library: pooch fetches a broken file from its first byte again, and urllib3's retries end where
the body of the answer begins.
"""

from __future__ import annotations

import http.client
import logging
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from fl.base.errors import DataError
from fl.base.files import disk_errors

log = logging.getLogger(__name__)

CHUNK = 1 << 20
TIMEOUT = 60.0
"""Seconds without a byte after which a server counts as silent."""
ATTEMPTS = 6
"""Attempts in a row that bring no byte before a server is given up."""
PAUSE = 1.0
"""Seconds before the second attempt; every further fruitless one doubles it."""
TELL = 10.0
"""Seconds between two lines of progress."""

PASSING = {408, 425, 429, 500, 502, 503, 504}
"""Statuses after which asking again may help."""


class Again(Exception):
    """An attempt that failed in a way that the next one may not."""


class Download:
    """One file that is being fetched.

    Args:
        partial: Where it arrives.
        target: What it will be; errors name it.
        resume: Whether to go on from bytes that are there; a checksum must then be compared.
    """

    def __init__(self, url: str, partial: Path, target: Path, resume: bool) -> None:
        self._url, self._partial, self._target = url, partial, target
        self._resume, self._version = resume, ""

    def run(self) -> None:
        """Bring all of it.

        Raises:
            DataError: If the server refuses or stays silent.
            FedloomError: If the disk refuses. In both cases what has arrived stays.
        """
        if self._partial.exists() and (not self._resume or self._partial.stat().st_nlink > 1):
            self._partial.unlink()  # It may be another name of a user's own file.
        failures = 0
        while True:
            before = self._size
            try:
                self._attempt()
                return
            except Again as reason:
                failures = 1 if self._size > before else failures + 1
                if failures >= ATTEMPTS:
                    raise DataError(
                        f"{self._target}: cannot be fetched from {self._url} ({reason};"
                        f" {ATTEMPTS} attempts); start again to try once more"
                    ) from reason
                pause = PAUSE * 2 ** (failures - 1)
                log.info("%s: %s; again in %.0f s", self._target.name, reason, pause)
                time.sleep(pause)

    @property
    def _size(self) -> int:
        return self._partial.stat().st_size if self._partial.exists() else 0

    def _attempt(self) -> None:
        headers = {"User-Agent": "fedloom", "Accept-Encoding": "identity"}
        if self._size and (self._version or self._resume):
            headers["Range"] = f"bytes={self._size}-"
            if self._version:
                headers["If-Range"] = self._version
        request = urllib.request.Request(self._url, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                self._receive(response)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:
                # Nothing is left to send, or another version is shorter: a fresh start tells.
                self._partial.unlink(missing_ok=True)
            elif error.code not in PASSING:
                problem = f"{self._target}: cannot be fetched from {self._url} ({error})"
                raise DataError(problem) from error
            raise Again(error) from error
        except (http.client.HTTPException, OSError) as error:
            raise Again(getattr(error, "reason", "") or error or type(error).__name__) from error

    def _receive(self, response: Any) -> None:
        if response.headers.get_content_type() == "text/html" and ".htm" not in self._target.name:
            raise DataError(
                f"{self._target}: {self._url} answers with a web page, not with the file; open it"
                " in a browser to see what it asks for"
            )
        version = _version(response.headers)
        if response.status == 206:
            start = str(response.headers.get("Content-Range", "")).partition("-")[0]
            # Some servers do not know If-Range.
            if start != f"bytes {self._size}" or (self._version and version != self._version):
                self._partial.unlink()
                raise Again("the server sent another part or another version than asked for")
        else:
            self._partial.unlink(missing_ok=True)
        self._version = version
        with disk_errors(self._partial), self._partial.open("ab") as out:
            told = time.monotonic()
            while chunk := response.read1(CHUNK):
                out.write(chunk)
                if time.monotonic() - told > TELL:
                    told = time.monotonic()
                    log.info("%s: %.0f MB", self._target.name, out.tell() / 1e6)
        # A connection that breaks off reads like the end of the file.
        if response.length:
            raise Again(f"the connection ended {response.length:,} bytes early")


def _version(headers: Any) -> str:
    """What names the version of a file for If-Range: a strong ETag, else the date, or nothing."""
    etag = headers.get("ETag") or ""
    return str(etag if etag.startswith('"') else headers.get("Last-Modified") or "")
