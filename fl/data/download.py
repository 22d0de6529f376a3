"""Fetching the raw files that a data set is made from.

A file gets its name when it is whole and has the checksum that it must have, so a file that has its
name is good.

A file over HTTP, however often the connection breaks.

After a break the rest is asked for, on the condition that the version is still the same (RFC 9110,
Range and If-Range). What an earlier process left is gone on from where a checksum will tell whether
it was of the same version.

No library: pooch fetches a broken file from its first byte again, and urllib3's retries end where
the body of the answer begins.

The checksums of files whose publishers state none: what came first is what later ones must be.

``config/sources.lock.json`` is ``{data set: {file: SHA-256}}``, sorted. It belongs with the config
under version control: everyone who runs the studies is then held to the same files.
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

PIP_NAMES = {"sklearn": "scikit-learn"}
"""What pip calls a package, where that is not the name it is imported by."""


@dataclass(frozen=True)
class Source:
    """A raw file.

    Attributes:
        name: The name that it gets.
        url: ``http(s)://...``, ``file:PATH`` or ``package:NAME/PATH``, a file inside an installed
            Python package; None for a file that only a person can get.
        sha256: Its SHA-256 (hex). Without it the first copy that is fetched is taken, and recorded
            where there is a lock file.
        note: How a person gets it.
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
    known: str | None = None,
) -> Path:
    """The path of ``source`` in ``folder``, fetched unless a good copy is there already.

    Args:
        origin: An http(s) address or a folder, where the file lies under its name; it takes the
            place of ``source.url``.
        lock: A file without a checksum of its own is held to it, or recorded in it.
        known: The checksum that such a file had when it was planned what to do with it.

    Raises:
        DataError: If the source cannot be had, or is not the file that was expected.
    """
    target = Path(folder) / source.name
    expected = source.sha256 or (lock.expected(source.name) if lock else None) or known
    by = f" (recorded in {lock.path})" if lock and not source.sha256 else ""
    try:
        with disk_errors(target), lock_folder(target.parent):
            if not target.is_file() or expected not in (None, sha256(target)):
                _bring(source, target, origin, expected, by)
            if lock and not source.sha256:
                lock.record(source.name, expected or sha256(target))
    except OSError as error:
        raise DataError(f"{target}: cannot be fetched ({error})") from error
    return target


def _bring(source: Source, target: Path, origin: str | None, expected: str | None, by: str) -> None:
    url = _source_url(source, target, origin)
    partial = target.with_name(f".{target.name}.partial")
    remote = urlparse(url).scheme in ("http", "https")
    resumes = remote and expected is not None and partial.exists()
    if remote:
        Download(url, partial, target, resume=expected is not None).run()
    else:
        _copy_local(url, source.name, target, partial)
    actual = sha256(partial) if expected else None
    if actual != expected and resumes:
        # What had arrived earlier was damaged, or of another version.
        Download(url, partial, target, resume=False).run()
        actual = sha256(partial)
    if actual != expected:
        partial.unlink()
        raise DataError(
            f"{target}: the file from {url} has sha256 {actual}, expected {expected}{by}; it is not"
            " kept, as it is damaged or another version"
        )
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(target)


def _source_url(source: Source, target: Path, origin: str | None) -> str:
    if origin is None:
        if source.url is None:
            state = "is not the file that was expected" if target.exists() else "is missing"
            raise DataError(
                f"{target}: {state}, and cannot be fetched without you: {source.note}; put it"
                f" there, or name a folder that holds {source.name} under `sources:` in config.yaml"
            )
        return source.url
    if urlparse(origin).scheme in ("http", "https"):
        return f"{origin.rstrip('/')}/{quote(source.name)}"
    return (path_of(origin).resolve() / source.name).as_uri()


def _copy_local(url: str, name: str, target: Path, partial: Path) -> None:
    """The file at a local address: a second name for a user's where the disk can, else a copy."""
    address = urlparse(url)
    if address.scheme == "package":
        path = _package_file(address.path)
    elif address.scheme == "file":
        path = Path(url2pathname(address.path)).resolve()
    else:
        allowed = "http:, https:, file:, package:"
        raise DataError(f"source {name}: url is {url!r}. Allowed: {allowed}")
    if not path.is_file():
        raise DataError(f"{target}: cannot be fetched from {url} (there is no file {path})")
    partial.unlink(missing_ok=True)
    if address.scheme == "file":
        with contextlib.suppress(OSError):
            os.link(path, partial)
            return
    shutil.copyfile(path, partial)


def _package_file(inner: str) -> Path:
    package, _, rest = inner.partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pip = PIP_NAMES.get(package, package)
        raise DataError(f"package:{inner}: {package} is not installed; do: pip install {pip}")
    return Path(spec.submodule_search_locations[0]) / rest


log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20
TIMEOUT_SECONDS = 60.0
"""Seconds without a byte after which a server counts as silent."""
MAX_ATTEMPTS = 6
"""Attempts in a row that bring no byte before a server is given up."""
PAUSE_SECONDS = 1.0
"""Seconds before the second attempt; every further fruitless one doubles it."""
PROGRESS_SECONDS = 10.0
"""Seconds between two lines of progress."""

TRANSIENT_STATUSES = {408, 425, 429, 500, 502, 503, 504}
"""Statuses after which asking again may help."""


class RetryableError(Exception):
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
            except RetryableError as reason:
                failures = 1 if self._size > before else failures + 1
                if failures >= MAX_ATTEMPTS:
                    raise DataError(
                        f"{self._target}: cannot be fetched from {self._url} ({reason};"
                        f" {MAX_ATTEMPTS} attempts); start again to try once more"
                    ) from reason
                pause = PAUSE_SECONDS * 2 ** (failures - 1)
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
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
                self._receive(response)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:
                # Nothing is left to send, or another version is shorter: a fresh start tells.
                self._partial.unlink(missing_ok=True)
            elif error.code not in TRANSIENT_STATUSES:
                problem = f"{self._target}: cannot be fetched from {self._url} ({error})"
                raise DataError(problem) from error
            raise RetryableError(error) from error
        except (http.client.HTTPException, OSError) as error:
            raise RetryableError(
                getattr(error, "reason", "") or error or type(error).__name__
            ) from error

    def _receive(self, response: Any) -> None:
        if response.headers.get_content_type() == "text/html" and ".htm" not in self._target.name:
            raise DataError(
                f"{self._target}: {self._url} answers with a web page, not with the file; open it"
                " in a browser to see what it asks for"
            )
        version = _version_header(response.headers)
        if response.status == 206:
            start = str(response.headers.get("Content-Range", "")).partition("-")[0]
            # Some servers do not know If-Range.
            if start != f"bytes {self._size}" or (self._version and version != self._version):
                self._partial.unlink()
                raise RetryableError(
                    "the server sent another part or another version than asked for"
                )
        else:
            self._partial.unlink(missing_ok=True)
        self._version = version
        with disk_errors(self._partial), self._partial.open("ab") as out:
            told = time.monotonic()
            while chunk := response.read1(CHUNK_BYTES):
                out.write(chunk)
                if time.monotonic() - told > PROGRESS_SECONDS:
                    told = time.monotonic()
                    log.info("%s: %.0f MB", self._target.name, out.tell() / 1e6)
        # A connection that breaks off reads like the end of the file.
        if response.length:
            raise RetryableError(f"the connection ended {response.length:,} bytes early")


def _version_header(headers: Any) -> str:
    """What names the version of a file for If-Range: a strong ETag, else the date, or nothing."""
    etag = headers.get("ETag") or ""
    return str(etag if etag.startswith('"') else headers.get("Last-Modified") or "")


LOCK_FILE = "sources.lock.json"
LOCK_ADVICE = (
    "bring it back from version control, or delete it so that the next download of each file is"
    " recorded anew"
)


@dataclass(frozen=True)
class Lock:
    """The part of a lock file that is about one data set."""

    path: Path
    dataset: str

    def expected(self, name: str) -> str | None:
        """The SHA-256 that the file ``name`` must have, or None if it was never fetched."""
        return self._read().get(self.dataset, {}).get(name)

    def record(self, name: str, sha256: str) -> None:
        """Hold the file ``name`` to ``sha256`` from now on, unless an entry is there already."""
        with disk_errors(self.path), lock_folder(self.path.parent):
            known = self._read()
            known.setdefault(self.dataset, {}).setdefault(name, sha256)
            write_json(self.path, {key: dict(sorted(known[key].items())) for key in sorted(known)})

    def _read(self) -> dict[str, dict[str, str]]:
        if not self.path.exists():
            return {}
        with wrap_read_errors(
            self.path, "cannot be read as checksums of files by data set", LOCK_ADVICE
        ):
            known = parse_json(self.path.read_bytes())
            return {dataset: dict(sums.items()) for dataset, sums in known.items()}


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold ``folder`` against other processes that ask for it in the same way."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems lock no folders. Writes are atomic without it as well.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
