"""Members of archives, streamed in the archive's order without unpacking to the disk.

No complete member is read into memory, and a tar is read once from beginning to end. Names of
members are harmless because no member becomes a file. Links and devices are skipped.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from fl.base.errors import DataError, wrap_read_errors

Archive = Path | BinaryIO
NameFilter = Callable[[str], bool]

FORMAT_BY_MAGIC = {
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",
    b"\x1f\x8b": "gz",
    b"BZh": "bz2",
    b"\xfd7zXZ\x00": "xz",
}
READ_SIZE = 1 << 20
"""Bytes per read: tarfile holds three copies of what is read at once."""
OPENERS: dict[str, Any] = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}


def iter_members(
    archive: Archive, accepts: NameFilter | None = None
) -> Iterator[tuple[str, BinaryIO]]:
    """Yield the files in a zip or a tar (plain, gz, bz2, xz), in the archive's order.

    Args:
        archive: A path, or a stream that this function has yielded, for an archive inside an
            archive (an inner zip is held in memory).
        accepts: Whether to yield a file of this name; by default all files are yielded.

    Yields:
        The name, without ``.`` and double slashes, and the content of each file. Read a content
        before the next one is yielded.

    Raises:
        DataError: If the archive is truncated or corrupt, or the file is no archive. It names the
            archive and the member.
    """
    title = stream_name(archive)
    with ExitStack() as stack:
        with _member_errors(title):
            if isinstance(archive, Path):
                stream: BinaryIO = stack.enter_context(archive.open("rb"))
            else:
                stream = archive
            kind = _archive_format(stream)
        read = _zip_members(stream, title) if kind == "zip" else _tar_members(stream, kind, title)
        for raw_name, content in read:
            name = "/".join(PurePosixPath(raw_name).parts)
            if accepts is None or accepts(name):
                named = MemberStream(content, title, name)
                yield name, cast(BinaryIO, io.BufferedReader(named, 1 << 16))


def read_member(archive: Archive, name: str) -> BinaryIO:
    """Return the content of one member in memory; raise a `DataError` if it does not exist."""
    for _, content in iter_members(archive, lambda member_name: member_name == name):
        return io.BytesIO(content.read())
    raise DataError(
        f"{stream_name(archive)}: has no member {name}", advice="fetch the archive again"
    )


def stream_name(archive: Archive) -> str:
    """Return the name of a file or stream for errors: its path, or ``archive: member``."""
    return str(archive) if isinstance(archive, Path) else str(getattr(archive, "name", "a stream"))


class MemberStream(io.RawIOBase):
    """Stream of a member whose read errors name the archive and the member.

    Args:
        inner: The stream of the archive reader.
        archive: Name of the archive.
        member: Name of the member.
    """

    def __init__(self, inner: BinaryIO, archive: str, member: str = "") -> None:
        self._inner, self._archive, self._member = inner, archive, member
        self.name = f"{archive}: {member}" if member else archive

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read bytes into ``buffer``; raise a `DataError` for damaged data."""
        with _member_errors(self._archive, self._member):
            chunk = self._inner.read(min(len(buffer), READ_SIZE))
        buffer[: len(chunk)] = chunk
        return len(chunk)


def _archive_format(stream: Any) -> str:
    start = stream.peek(8)[:8]
    return next((kind for magic, kind in FORMAT_BY_MAGIC.items() if start.startswith(magic)), "tar")


def _zip_members(stream: BinaryIO, title: str) -> Iterator[tuple[str, BinaryIO]]:
    with _member_errors(title):
        book = zipfile.ZipFile(stream if stream.seekable() else io.BytesIO(stream.read()))
    with book:
        for info in sorted(book.infolist(), key=lambda info: info.header_offset):
            if not info.is_dir():
                with _member_errors(title, info.filename):
                    content = book.open(info)
                with content:
                    yield info.filename, cast(BinaryIO, content)


def _tar_members(stream: BinaryIO, kind: str, title: str) -> Iterator[tuple[str, BinaryIO]]:
    with _member_errors(title):
        plain = OPENERS[kind](stream) if kind in OPENERS else stream
        with tarfile.open(fileobj=plain, mode="r|") as tar:
            while info := tar.next():
                content = tar.extractfile(info) if info.isreg() and not info.issparse() else None
                if content is not None:
                    yield info.name, cast(BinaryIO, content)
                # tarfile keeps a list of all members; data sets have a million of them.
                tar.members.clear()  # type: ignore[attr-defined]
        while plain.read(READ_SIZE):  # The checksum of a compressed stream is at its end.
            pass


def _member_errors(archive: str, member: str = "") -> AbstractContextManager[None]:
    """Turn errors inside into a `DataError` that names the archive and the member."""
    location = f"{archive}: member {member}" if member else archive
    problem = "is truncated, damaged or of an unexpected format"
    return wrap_read_errors(location, problem, "delete the file to fetch it again")
