"""Files of others, written into one folder and nowhere else, and no more of them than is allowed.

Whether a name leads out is asked of the path that is about to be written, not of the name: whatever
was done to the name before, and whatever lies in the folder by then, decides nothing.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import BinaryIO

from fl.base.errors import DataError

ROOM, RATIO = 1 << 32, 100
CHUNK = 1 << 20

UNWRITABLE = {
    *(errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR),
    *(errno.EEXIST, errno.EINVAL, errno.EILSEQ),
}
"""What a file system answers to a name that cannot be, whoever asks."""


def allowance(archive: Path) -> int:
    """How many bytes may come out of an archive: 4 GiB, and a hundred times its own size."""
    return ROOM + RATIO * archive.stat().st_size


class Room:
    """A folder that an archive's files are put into.

    Args:
        limit: How many bytes it takes in all; by default the archive's `allowance`.
    """

    def __init__(self, folder: Path, archive: Path, limit: int | None = None) -> None:
        self._folder, self._archive = folder.resolve(), archive
        self._limit = allowance(archive) if limit is None else limit
        self._used = 0

    def put(self, name: str, content: BinaryIO, stated: int = 0) -> None:
        """Write a file.

        Args:
            stated: How many bytes the archive says that it has.

        Raises:
            DataError: If the path lies outside of the folder, if there can be no file of that name,
                or if there are more bytes than allowed; it names archive and member.
        """
        self._hold(name, self._used + stated)
        try:
            target = self._folder.joinpath(name)
            inside = target.resolve()
            if not inside.is_relative_to(self._folder) or inside == self._folder:
                raise self._refused(name, "would be written outside of its folder")
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                while chunk := content.read(CHUNK):
                    self._used += len(chunk)
                    self._hold(name, self._used)
                    out.write(chunk)
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            raise self._refused(name, f"cannot be a file here ({error.strerror})") from None
        except ValueError as error:  # What cannot be said to the file system at all.
            raise self._refused(name, f"cannot be a file here ({error})") from None

    def _hold(self, name: str, total: int) -> None:
        if total > self._limit:
            problem = f"makes it {total:,} bytes; allowed: {self._limit:,} in all"
            raise self._refused(name, f"{problem}")

    def _refused(self, name: str, problem: str) -> DataError:
        shown = name if len(name) <= 100 else f"{name[:100]}..."
        return DataError(f"{self._archive}: member {shown!r} {problem}; nothing of it is kept")
