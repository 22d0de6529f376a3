"""Fetching the raw files that a data set is made from.

A file gets its name when it is whole and has the checksum that it must have, so a file that has its
name is good.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlparse
from urllib.request import url2pathname

from fl.base.errors import DataError
from fl.base.files import disk_errors, sha256
from fl.base.folders import path_of
from fl.data.lock import Lock, alone_in
from fl.data.transfer import Download

DISTRIBUTIONS = {"sklearn": "scikit-learn"}
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
        with disk_errors(target), alone_in(target.parent):
            if not target.is_file() or expected not in (None, sha256(target)):
                _bring(source, target, origin, expected, by)
            if lock and not source.sha256:
                lock.record(source.name, expected or sha256(target))
    except OSError as error:
        raise DataError(f"{target}: cannot be fetched ({error})") from error
    return target


def _bring(source: Source, target: Path, origin: str | None, expected: str | None, by: str) -> None:
    url = _address(source, target, origin)
    partial = target.with_name(f".{target.name}.partial")
    remote = urlparse(url).scheme in ("http", "https")
    resumes = remote and expected is not None and partial.exists()
    if remote:
        Download(url, partial, target, resume=expected is not None).run()
    else:
        _take(url, source.name, target, partial)
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


def _address(source: Source, target: Path, origin: str | None) -> str:
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


def _take(url: str, name: str, target: Path, partial: Path) -> None:
    """The file at a local address: a second name for a user's where the disk can, else a copy."""
    address = urlparse(url)
    if address.scheme == "package":
        path = _inside_package(address.path)
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


def _inside_package(inner: str) -> Path:
    package, _, rest = inner.partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pip = DISTRIBUTIONS.get(package, package)
        raise DataError(f"package:{inner}: {package} is not installed; do: pip install {pip}")
    return Path(spec.submodule_search_locations[0]) / rest
