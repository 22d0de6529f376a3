"""Reading and writing of files, so that a file is either complete or does not exist.

Files are written under a temporary name in the same folder, forced to the disk and renamed.
A record can be *sealed*: it then contains the hashes of the files that it describes and a hash of
itself, so that every changed bit is noticed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import pwd
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fl.base.errors import DataError, FedloomError, wrap_read_errors

if TYPE_CHECKING:
    import pandas as pd

_REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EFBIG: "the file grew past the limit of the shell (ulimit -f) or of the disk; raise it",
    errno.EROFS: "the file system is read-only; make it writable or choose another folder",
    errno.EACCES: "permission denied; change the permissions or choose another folder",
    errno.EPERM: "not permitted here; choose a folder that is yours",
    errno.ENOTSUP: "not possible on this file system; choose another",
    errno.EIO: "the disk or file server reports a fault; mend it or choose another folder",
    errno.ENOENT: "gone while in use; see who removed it",
    errno.ENOTDIR: "a part of this path is a file, not a folder; choose another folder",
    errno.EEXIST: "a file stands where a folder is needed; choose another folder",
    errno.ESTALE: "gone while in use; see who removed it",
    errno.ELOOP: "links here lead round in a circle; remove one or choose another folder",
    errno.ENAMETOOLONG: "longer than a file's name can be; choose a shorter one",
}


RECORD_BYTES = 1 << 26
"""Largest size of a record in bytes; real ones have some kilobytes."""


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn errors of a disk (full, read-only, not permitted, ...) into a `FedloomError`.

    The message names ``path``, the problem and what to do. Any other `OSError` passes.
    """
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0)
        if remedy is None:
            raise
        if error.errno in (errno.EACCES, errno.EPERM) and (owner := _other_owner(error)):
            remedy = f"permission denied, as it belongs to {owner}; {_SHARING}"
        location = f" ({error.filename})" if error.filename else ""
        raise FedloomError(
            f"{path}: {remedy}, then start again; complete files are kept{location}"
        ) from error


_SHARING = (
    "a folder for several people needs `chmod -R g+rwX` and `chmod g+s`, and each of them "
    "`umask 002`"
)


def _other_owner(error: OSError) -> str:
    """Return the owner of the file that an error is about; empty if it is this user."""
    if not isinstance(error.filename, str):
        return ""
    path = Path(error.filename)
    with contextlib.suppress(OSError):
        nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
        user = nearest.stat().st_uid
        if user != os.geteuid():
            return _user_name(user)
    return ""


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def sharing_problem(folder: Path) -> str:
    """Return why others of a folder's group cannot use what this process makes there.

    A folder that its group may write to is meant for several people.

    Args:
        folder: The folder.

    Returns:
        The problem and what to do; empty if there is none.
    """
    try:
        status = folder.stat()
    except OSError:
        return ""
    if not status.st_mode & stat.S_IWGRP:
        return ""
    umask = os.umask(0)
    os.umask(umask)
    if umask & stat.S_IWGRP:
        problem = f"its group may write to it, but not to what is made there with umask {umask:03o}"
    elif not status.st_mode & stat.S_ISGID and status.st_gid != os.getegid():
        problem = "what is made there does not get its group"
    else:
        return ""
    return f"{folder}: {problem}: {_SHARING}"


def is_file(path: Path) -> bool:
    """Whether the file exists; False for an impossible name."""
    return os.path.isfile(path)  # noqa: PTH113 `Path` raises for a name that is too long.


def is_folder(path: Path) -> bool:
    """Whether the folder exists; False for an impossible name."""
    return os.path.isdir(path)  # noqa: PTH112 `Path` raises for a name that is too long.


def list_files_below(folder: Path, parents: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield the files below a folder, sorted by path, without hidden files.

    Links to folders are followed.

    Args:
        folder: The folder.
        parents: Resolved paths of the folders around it; a link to one of them is skipped.
    """
    real = folder.resolve()
    if real in parents:
        return
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from list_files_below(path, (*parents, real))
        else:
            yield path


def check_writable(folder: Path) -> None:
    """Raise `FedloomError` if a folder cannot be made or written to."""
    with disk_errors(folder):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        tempfile.TemporaryFile(dir=existing).close()


def temporary_name(path: Path) -> Path:
    """Return a unique hidden path beside ``path``, ending in ``.tmp``."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


@contextlib.contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write to; afterwards it is forced to the disk and renamed to ``path``.

    If the body raises, ``path`` stays unchanged and the temporary file is removed.
    """
    draft = temporary_name(path)
    try:
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Force the names in ``folder`` to the disk, so that a rename survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems do this by themselves and refuse the call.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def move(source: Path, target: Path) -> bool:
    """Rename a folder and force it to the disk; False if the target exists."""
    try:
        source.rename(target)
    except FileNotFoundError:
        # NFS can lose the answer to a rename; the second try then does not find the source.
        if source.exists() or not target.exists():
            raise
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    sync_folder(target.parent)
    return True


def erase(folder: Path) -> None:
    """Remove a folder: first its name, at once, then its content.

    A missing folder is no error. Files that cannot be deleted stay under a temporary name.
    """
    draft = temporary_name(folder)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(draft)
    shutil.rmtree(draft, ignore_errors=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with atomic_writer(path) as file:
        file.write(content)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically, with keys in their order."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def write_table(path: Path, rows: pd.DataFrame) -> None:
    """Write a Parquet file atomically, without the index of the table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(rows, preserve_index=False)
    plain = [
        field.with_type(pa.string()) if pa.types.is_large_string(field.type) else field
        for field in table.schema
    ]
    with atomic_writer(path) as file:
        pq.write_table(table.cast(pa.schema(plain)).replace_schema_metadata(), file)


@contextlib.contextmanager
def open_regular(path: Path) -> Iterator[io.BufferedReader]:
    """Open an ordinary file for reading.

    Raises:
        DataError: If it is a pipe or a device, which may have no end.
    """
    # Without O_NONBLOCK, a pipe that nobody writes to would block.
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.ELOOP, errno.ENAMETOOLONG):
            raise
        raise DataError(f"{path}: cannot be opened as a file ({error.strerror})") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise DataError(f"{path}: is a folder, a pipe or a device. Allowed: a file")
    with os.fdopen(handle, "rb") as file:
        yield file


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal.

    Raises:
        DataError: If it is not an ordinary file.
    """
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_json(content: str | bytes) -> Any:
    """Return the value in a JSON text.

    Raises:
        ValueError: If the text is no JSON, is nested too deeply, or could not be written again.
    """
    try:
        value = json.loads(content)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("lists or mappings are nested too deeply") from None
    return value


def write_sealed(path: Path, record: Mapping[str, Any], files: Iterable[str] = ()) -> None:
    """Write ``record`` as JSON with two keys added.

    ``files`` has the size (bytes) and the SHA-256 of each file; ``seal`` is the SHA-256 of the
    record itself.

    Args:
        path: The file of the record.
        record: Its content.
        files: Names of files in the same folder.
    """
    described = {
        name: {"size": (path.parent / name).stat().st_size, "sha256": sha256(path.parent / name)}
        for name in files
    }
    write_described(path, record, described)


def write_described(path: Path, record: Mapping[str, Any], files: Mapping[str, Any]) -> None:
    """Write a sealed record for files whose size and SHA-256 are known."""
    # Through JSON and back, so that the seal covers exactly what a reader gets.
    plain = json.loads(json.dumps({**record, "files": dict(files)}))
    write_json(path, {**plain, "seal": _seal(plain)})


def read_sealed(path: Path) -> dict[str, Any]:
    """Return a record that `write_sealed` wrote, without its seal.

    Raises:
        DataError: If the file is unreadable or was changed.
        FileNotFoundError: If the file does not exist.
    """
    try:
        with open_regular(path) as file:
            content = file.read(RECORD_BYTES + 1)
        if len(content) > RECORD_BYTES:
            raise DataError(f"{path}: is too long for a record. Allowed: {RECORD_BYTES:,} bytes")
        record = parse_json(content)
    except ValueError as error:
        raise DataError(f"{path}: is not readable as JSON ({error})") from None
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    if not isinstance(record, dict) or not isinstance(record.get("files"), dict):
        raise DataError(f"{path}: is not a record with its files")
    for name, described in record["files"].items():
        _check_described(path, name, described)
    if record.pop("seal", None) != _seal(record):
        raise DataError(f"{path}: does not match its seal: it was changed or damaged")
    return record


def _check_described(path: Path, name: str, described: Any) -> None:
    """Raise `DataError` if a record names a file in another folder, or does not describe it."""
    if not name.isprintable() or {*name} & {*"/\\"} or name in ("", ".", ".."):
        raise DataError(f"{path}: has a file {name!r}. Allowed: names of files in its own folder")
    types = {"size": int, "sha256": str}
    if not isinstance(described, dict) or any(
        type(described.get(key)) is not type_ for key, type_ in types.items()
    ):
        raise DataError(f"{path}: describes {name!r} without its size and sha256")


def _seal(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def find_damage(path: Path, described: Mapping[str, Any], hashed: bool = True) -> str | None:
    """Compare a file with its description in a sealed record; return the problem, or None.

    Args:
        path: The file.
        described: Its size and hash.
        hashed: Whether the hash is compared too, for which the whole file is read.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != described["size"]:
                return f"{path}: has {size} bytes instead of {described['size']}"
            if hashed and hashlib.file_digest(file, "sha256").hexdigest() != described["sha256"]:
                return f"{path}: does not match its SHA-256: it was changed or damaged"
    except DataError as error:
        return str(error)
    except FileNotFoundError:
        return f"{path}: is missing"
    except ValueError as error:
        return f"{str(path)!r}: is not a possible file name ({error})"
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return f"{path}: cannot be read ({error.strerror})"
    return None


def read_parquet(path: str | Path) -> tuple[pd.DataFrame, dict[bytes, bytes]]:
    """Return the table in a Parquet file, and the metadata of its schema.

    The notes of pandas on types and indices are ignored.

    Raises:
        DataError: If the file does not exist, is damaged, or has two columns with the same name.
    """
    import pyarrow.parquet as pq

    with wrap_read_errors(path, "cannot be read as Parquet"):
        with pq.ParquetFile(path) as file:
            stored = file.read()
        names = stored.column_names
        table = stored.to_pandas(ignore_metadata=True)
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"{path}: has two columns {name!r}", advice="rename one of them")
    return table, dict(stored.schema.metadata or {})
