"""Members of archives, streamed in the archive's order; nothing is written to the disk.

No member is read into memory whole, and a tar is read once from its beginning to its end. As no
member becomes a file here, its name cannot lead anywhere; links and devices are passed over.
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
"""Bytes that are asked for at once: tarfile holds all that it is asked for three times."""
OPENERS: dict[str, Any] = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}


def iter_members(
    archive: Archive, wanted: NameFilter | None = None
) -> Iterator[tuple[str, BinaryIO]]:
    """The files in a zip or a tar (plain, gz, bz2, xz), in the archive's order.

    Args:
        archive: A path, or a content that this function has yielded: so an archive inside an
            archive is read (a zip inside an archive is held in memory).
        wanted: Says by its name whether to yield a file; by default all are yielded.

    Yields:
        The name, without ``.`` and doubled strokes, and the content of each file. Read a content
        before you ask for the next one.

    Raises:
        DataError: For an archive that is truncated, corrupt or no archive. It names the archive,
            and the member that is at fault.
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
            if wanted is None or wanted(name):
                named = MemberStream(content, title, name)
                yield name, cast(BinaryIO, io.BufferedReader(named, 1 << 16))


def read_member(archive: Archive, name: str) -> BinaryIO:
    """The content of one file of an archive, in memory; `DataError` if it is not there."""
    for _, content in iter_members(archive, lambda other: other == name):
        return io.BytesIO(content.read())
    raise DataError(f"{stream_name(archive)}: has no member {name}; fetch it again, or look inside")


def stream_name(archive: Archive) -> str:
    """What an error calls a file or a content: its path, or ``archive: member``."""
    return str(archive) if isinstance(archive, Path) else str(getattr(archive, "name", "a stream"))


class MemberStream(io.RawIOBase):
    """A member's bytes; whatever is wrong with them is an error that names archive and member."""

    def __init__(self, inner: BinaryIO, archive: str, member: str = "") -> None:
        self._inner, self._archive, self._member = inner, archive, member
        self.name = f"{archive}: {member}" if member else archive

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As any stream, or `DataError`."""
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
                # All that was read stays in a list otherwise, and sets have a million members.
                tar.members.clear()  # type: ignore[attr-defined]
        while plain.read(READ_SIZE):  # The checksum of a compressed stream stands at its end.
            pass


def _member_errors(archive: str, member: str = "") -> AbstractContextManager[None]:
    """Errors inside as `DataError` that names the archive and the member."""
    at = f"{archive}: member {member}" if member else archive
    wrong = "is truncated, damaged or of another kind than expected"
    return wrap_read_errors(at, wrong, "delete the file to fetch it again")
