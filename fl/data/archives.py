"""Members of archives, streamed in the archive's order, and whole archives unpacked safely.

Nothing is read into memory whole, and a tar is read once from its beginning to its end. Whatever
its author meant, an archive cannot write outside the folder that it is unpacked into.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO, NoReturn, cast

from fl.base.errors import DataError
from fl.base.files import disk_errors, erase, sync_folder, temporary
from fl.data.unpacking import Room

Archive = Path | BinaryIO
Wanted = Callable[[str], bool]
Member = tuple[str, BinaryIO, int]
"""A file's name, its content and its size as the archive states it."""

MAGIC = {
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",
    b"\x1f\x8b": "gz",
    b"BZh": "bz2",
    b"\xfd7zXZ\x00": "xz",
}
CHUNK = 1 << 20
"""Bytes that are asked for at once: tarfile holds all that it is asked for three times."""
HEAD = 1 << 24
"""How long a member's name and what else a tar says of it may be: tarfile holds it in memory."""
OPENERS: dict[str, Any] = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}

DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError),
    *(OSError, NotImplementedError, RuntimeError, ValueError),
)
"""What Python's readers raise for archives that are truncated, corrupt, encrypted or exotic."""


def entries(archive: Archive, wanted: Wanted | None = None) -> Iterator[tuple[str, BinaryIO]]:
    """The files in a zip or a tar (plain, gz, bz2, xz), in the archive's order.

    A tar whose end is missing is found out after its last member.

    Args:
        archive: A path, or a content that this function has yielded: so an archive inside an
            archive is read (a zip inside a tar is held in memory).
        wanted: Says by its name whether to yield a file; by default all are yielded.

    Yields:
        The name and the content of each file. Read a content before you ask for the next one.
        Folders are passed over.

    Raises:
        DataError: For an archive that is truncated, corrupt or no archive, and for members that are
            links or devices or whose names lead out of a folder. It names the archive, and the
            member that is at fault.
    """
    title = name_of(archive)
    with ExitStack() as stack:
        with _blamed(title):
            if isinstance(archive, Path):
                stream: BinaryIO = stack.enter_context(archive.open("rb"))
            else:
                stream = cast(BinaryIO, io.BufferedReader(_Raw(archive)))
            kind = _kind(stream)
        wanted = wanted or (lambda name: True)
        members = (
            _zipped(stream, title, wanted)
            if kind == "zip"
            else _tarred(stream, kind, title, wanted)
        )
        for name, content, size in members:
            found = Content(content, title, name, size)
            yield name, cast(BinaryIO, io.BufferedReader(found, 1 << 16))


def member(archive: Archive, name: str) -> BinaryIO:
    """The content of one file of an archive, in memory; `DataError` if it is not there."""
    for _, content in entries(archive, lambda found: found == name):
        return io.BytesIO(content.read())
    raise DataError(f"{name_of(archive)}: has no member {name}; fetch it again, or look inside")


def decompressed(path: Path) -> BinaryIO:
    """The content of a single file that is compressed by gz, bz2 or xz; errors are `DataError`."""
    with _blamed(str(path)):
        with path.open("rb") as file:
            kind = _kind(file)
        if kind not in OPENERS:
            raise ValueError("neither gz, bz2 nor xz")
        inner = OPENERS[kind](path)
    return cast(BinaryIO, io.BufferedReader(Content(inner, str(path)), 1 << 16))


def unpack(archive: Path, folder: Path, limit: int | None = None) -> Path:
    """Unpack everything in ``archive`` into ``folder``; a folder that is there already stays as it
    is.

    The folder gets its name when it is complete.

    Args:
        limit: How many bytes may come out; by default 4 GiB and a hundred times the archive's own
            size.

    Raises:
        DataError: As `entries` does, and for more bytes than ``limit``.
        FedloomError: If the disk refuses. In each case nothing is left behind.
    """
    if folder.is_dir():
        return folder
    draft = temporary(folder)
    with disk_errors(folder):
        try:
            draft.mkdir(parents=True)
            fill(draft, archive, limit)
            draft.rename(folder)
            sync_folder(folder.parent)
        except BaseException:
            erase(draft)
            raise
    return folder


def fill(
    folder: Path, archive: Path, limit: int | None = None, wanted: Wanted | None = None
) -> None:
    """Write the files of an archive into a folder that is there; see `unpack`."""
    room: Room | None = None
    for name, content in entries(archive, wanted):
        room = room or Room(folder, archive, limit)
        stated = content.raw.size  # type: ignore[attr-defined]
        room.put(name, content, stated)


def name_of(archive: Archive) -> str:
    """What an error calls a file or a content: its path, or ``archive: member``."""
    return str(archive) if isinstance(archive, Path) else str(getattr(archive, "name", "a stream"))


class Content(io.RawIOBase):
    """A member's bytes; whatever is wrong with them is an error that names archive and member."""

    def __init__(self, inner: BinaryIO, archive: str, member: str = "", size: int = 0) -> None:
        self._inner, self._archive, self._member = inner, archive, member
        self.size = size  # As the archive states it.
        self.name = f"{archive}: {member}" if member else archive

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As any stream, or `DataError`."""
        with _blamed(self._archive, self._member):
            chunk = self._inner.read(min(len(buffer), CHUNK))
        buffer[: len(chunk)] = chunk
        return len(chunk)


class _Raw(io.RawIOBase):
    """A stream that a reader may close without closing what it reads from."""

    def __init__(self, inner: BinaryIO) -> None:
        self._inner = inner

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self._inner.read(min(len(buffer), CHUNK))
        buffer[: len(chunk)] = chunk
        return len(chunk)


class _Tail(_Raw):
    """A stream that remembers its last bytes, by which a complete tar is known.

    ``left`` is how many bytes may still be read, where that is limited.
    """

    last = b""
    left: int | None = None

    def readinto(self, buffer: Any) -> int:
        read = super().readinto(buffer)
        if self.left is not None:
            self.left -= read
            if self.left < 0:
                raise tarfile.ReadError(f"a member's head is longer than {HEAD:,} bytes")
        self.last = self.last + bytes(buffer[max(0, read - tarfile.BLOCKSIZE) : read])
        self.last = self.last[-tarfile.BLOCKSIZE :]
        return read


def _kind(stream: Any) -> str:
    start = stream.peek(8)[:8]
    return next((kind for magic, kind in MAGIC.items() if start.startswith(magic)), "tar")


def _zipped(stream: BinaryIO, title: str, wanted: Wanted) -> Iterator[Member]:
    with _blamed(title), ExitStack() as stack:
        whole = stream if stream.seekable() else io.BytesIO(stream.read())
        found = stack.enter_context(zipfile.ZipFile(whole))
        keep = stack.pop_all()
    with keep:
        for info in sorted(found.infolist(), key=lambda info: info.header_offset):
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                _refuse(title, info.filename, "is a link or a device")
            name = _checked(title, info.filename)
            if not info.filename.endswith("/") and wanted(name):
                with _blamed(title, name):
                    content = found.open(info)
                with content:
                    yield name, cast(BinaryIO, content), info.file_size


def _tarred(stream: BinaryIO, kind: str, title: str, wanted: Wanted) -> Iterator[Member]:
    plain = _Tail(OPENERS[kind](stream) if kind in OPENERS else stream)
    with _blamed(title):
        plain.left = HEAD
        found = tarfile.TarFile.open(fileobj=cast(BinaryIO, plain), mode="r|", bufsize=1 << 16)
    while True:
        with _blamed(title):
            plain.left = HEAD
            info = found.next()
            plain.left = None
        if info is None:
            break
        if not (info.isfile() or info.isdir()):
            _refuse(title, info.name, "is a link or a device")
        if info.issparse():
            _refuse(title, info.name, "has holes, and may be of any size")
        name = _checked(title, info.name)
        content = cast(BinaryIO, found.extractfile(info)) if info.isfile() else io.BytesIO()
        if info.isfile() and wanted(name):
            yield name, content, info.size
        with _blamed(title, name):  # So that the next that is read is a head.
            while content.read(CHUNK):
                pass
        # All that was read stays in a list otherwise, and sets have a million members.
        found.members.clear()  # type: ignore[attr-defined]
    with _blamed(title):
        while plain.read(CHUNK):
            pass
        if plain.last != bytes(tarfile.BLOCKSIZE):
            raise EOFError("its end is missing")


def _checked(title: str, name: str) -> str:
    """The name without ``.`` and doubled strokes, which hide where it leads."""
    if not name or "\0" in name:
        _refuse(title, name, "has no name, or a zero in it")
    plain = PurePosixPath(name.replace("\\", "/"))
    if plain.is_absolute() or PureWindowsPath(name).drive:
        _refuse(title, name, "is an absolute path")
    if ".." in plain.parts:
        _refuse(title, name, "leads out of the folder (..)")
    return "/".join(PurePosixPath(name).parts)


def _refuse(title: str, name: str, problem: str) -> NoReturn:
    raise DataError(
        f"{title}: member {name!r} {problem}; no such thing is unpacked: get the archive from its"
        " publisher"
    )


@contextmanager
def _blamed(archive: str, member: str = "") -> Iterator[None]:
    """Errors inside as `DataError` that names the archive and the member."""
    try:
        yield
    except DAMAGE as error:
        at = f"{archive}: member {member}" if member else archive
        reason = error or type(error).__name__
        raise DataError(
            f"{at}: is truncated, damaged or of another kind than expected ({reason}); delete the"
            " file to fetch it again"
        ) from error
