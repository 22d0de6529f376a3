"""Files that are either complete or not there.

Everything is written under a temporary name in the same folder, forced to the disk and renamed.
A record can be *sealed*: it then carries a hash of itself beside the hashes of the files it
describes, so that a flipped bit anywhere is noticed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fl.base.errors import DataError, FedloomError

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
"""The most bytes a record may have; real ones have some kilobytes."""


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what a disk can refuse (full, read-only, not permitted, ...) into a `FedloomError`.

    The message names ``path``, what is wrong and what to do; any other `OSError` passes.
    """
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0)
        if remedy is None:
            raise
        location = f" ({error.filename})" if error.filename else ""
        raise FedloomError(
            f"{path}: {remedy}, then start again: what was complete before is kept{location}"
        ) from error


def is_file(path: Path) -> bool:
    """Whether there is such a file; False for a name that no file can have."""
    return os.path.isfile(path)  # noqa: PTH113 `Path` raises for a name that is too long.


def is_folder(path: Path) -> bool:
    """Whether there is such a folder; False for a name that no folder can have."""
    return os.path.isdir(path)  # noqa: PTH112 `Path` raises for a name that is too long.


def check_writable(folder: Path) -> None:
    """Raise `FedloomError` for a folder that nothing can be written to, or that cannot be made."""
    with disk_errors(folder):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        tempfile.TemporaryFile(dir=there).close()


def temporary(path: Path) -> Path:
    """A unique hidden name beside ``path``, ending in ``.tmp``."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write to; afterwards it is forced to the disk and becomes ``path``.

    If the body raises, ``path`` stays what it was and the temporary file is removed.
    """
    draft = temporary(path)
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
    """Force the names in ``folder`` to the disk, so that a rename outlives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems sync names by themselves and refuse to be asked.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def move(source: Path, target: Path) -> bool:
    """Rename a folder for good; False if the target is taken."""
    try:
        source.rename(target)
    except FileNotFoundError:
        # The answer to a rename can be lost on NFS, and the second try then finds nothing.
        if source.exists() or not target.exists():
            raise
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    sync_folder(target.parent)
    return True


def erase(folder: Path) -> None:
    """Remove a folder: first its name, at once, then what is in it. A folder that is gone is no
    error.

    What cannot be deleted now stays under a temporary name.
    """
    draft = temporary(folder)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(draft)
    shutil.rmtree(draft, ignore_errors=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with replacing(path) as file:
        file.write(content)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically, keys in the order given."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def write_table(path: Path, rows: pd.DataFrame) -> None:
    """Write a Parquet file atomically; the index of the table is not kept."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(rows, preserve_index=False)
    plain = [
        field.with_type(pa.string()) if pa.types.is_large_string(field.type) else field
        for field in table.schema
    ]
    with replacing(path) as file:
        pq.write_table(table.cast(pa.schema(plain)).replace_schema_metadata(), file)


@contextlib.contextmanager
def ordinary(path: Path) -> Iterator[io.BufferedReader]:
    """A file, opened to be read.

    Raises:
        DataError: For a pipe or a device, which may have no end.
    """
    # Not to be blocked by a pipe that nobody writes to; files know no difference.
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.ELOOP, errno.ENAMETOOLONG):
            raise
        raise DataError(f"{path}: is no file that can be opened ({error.strerror})") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise DataError(f"{path}: is a folder, a pipe or a device. Allowed: a file")
    with os.fdopen(handle, "rb") as file:
        yield file


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal.

    Raises:
        DataError: If it is no ordinary file.
    """
    with ordinary(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_json(content: str | bytes) -> Any:
    """The value in a JSON text.

    Raises:
        ValueError: For text that is no JSON, that is nested too deep to be read, or that could not
            be written again.
    """
    try:
        value = json.loads(content)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("lists or mappings too deep within each other") from None
    return value


def write_sealed(path: Path, record: Mapping[str, Any], files: Iterable[str] = ()) -> None:
    """Write ``record`` as JSON with two keys added.

    ``files`` has the size (bytes) and the SHA-256 of each file; ``seal`` is the SHA-256 of the
    record itself.

    Args:
        files: Names of files in the same folder.
    """
    described = {
        name: {"size": (path.parent / name).stat().st_size, "sha256": sha256(path.parent / name)}
        for name in files
    }
    write_described(path, record, described)


def write_described(path: Path, record: Mapping[str, Any], files: Mapping[str, Any]) -> None:
    """As `write_sealed`, for files whose size and SHA-256 are known."""
    # Through JSON and back, so that the seal is over what a reader will see.
    plain = json.loads(json.dumps({**record, "files": dict(files)}))
    write_json(path, {**plain, "seal": _seal(plain)})


def read_sealed(path: Path) -> dict[str, Any]:
    """What `write_sealed` wrote, without the seal.

    Raises:
        DataError: If the file is not readable as such, or was changed.
        FileNotFoundError: If there is none.
    """
    try:
        with ordinary(path) as file:
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
    """Raise `DataError` for a record's file that may lie elsewhere or has no description."""
    if not name.isprintable() or {*name} & {*"/\\"} or name in ("", ".", ".."):
        raise DataError(f"{path}: has a file {name!r}. Allowed: names of files in its own folder")
    kinds = {"size": int, "sha256": str}
    if not isinstance(described, dict) or any(
        type(described.get(key)) is not kind for key, kind in kinds.items()
    ):
        raise DataError(f"{path}: describes {name!r} without its size and sha256")


def _seal(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def damage(path: Path, described: Mapping[str, Any]) -> str | None:
    """What is wrong with a file, compared with its entry in a sealed record; None if nothing is."""
    try:
        with ordinary(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != described["size"]:
                return f"{path}: has {size} bytes instead of {described['size']}"
            if hashlib.file_digest(file, "sha256").hexdigest() != described["sha256"]:
                return f"{path}: does not match its SHA-256: it was changed or damaged"
    except DataError as error:
        return str(error)
    except FileNotFoundError:
        return f"{path}: is missing"
    except ValueError as error:
        return f"{str(path)!r}: can be no file ({error})"
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return f"{path}: cannot be read ({error.strerror})"
    return None
