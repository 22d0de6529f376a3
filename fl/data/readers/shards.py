"""Names of the files of a data set: their published split, and whether files are missing.

Hugging Face writes ``train-00000-of-00002.parquet``, formerly with 16 letters of a hash behind the
number of files, or ``train/0000.parquet``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from fl.base.errors import DataError
from fl.data.prepared import SPLIT_NAMES

SPLIT_BY_NAME = {name: name for name in SPLIT_NAMES} | {"valid": "val", "validation": "val"}
"""Split by the name of its folders and files."""
SHARD = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})(?:-[0-9a-f]{16})?\.[A-Za-z]+")
"""Names of numbered files: a common part, the number from 0 on, and the number of files."""
NUMBERS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9]+")
"""Parts of file names that differ between the files of a table: numbers and UUIDs."""
MAX_LISTED_FILES = 5
"""Largest number of files that a message names."""
SPLIT_TEXT = "train, test, val (or valid, validation)"


def check_shards(files: Sequence[Path]) -> None:
    """Raise a `DataError` unless there is each of the files that the names of numbered files count.

    Args:
        files: The files that are read.
    """
    shards: dict[tuple[Path, str], list[tuple[int, int, str]]] = defaultdict(list)
    for file in files:
        if match := SHARD.fullmatch(file.name):
            shards[file.parent, match[1]].append((int(match[2]), int(match[3]), file.name))
    for (folder, name), numbered in shards.items():
        numbers, counts = [shard[0] for shard in numbered], {shard[1] for shard in numbered}
        if len(counts) > 1 or len({*numbers}) < len(numbers):
            listed = ", ".join(shard[2] for shard in numbered[:MAX_LISTED_FILES])
            problem = f"{folder}: contains files of several exports of {name!r}, such as {listed}"
            raise DataError(problem, advice="delete the files of the older export")
        [count] = counts
        missing = [f"{name}-{n:05}-of-{count:05}" for n in range(count) if n not in numbers]
        if missing:
            unlisted = ", ..." if len(missing) > MAX_LISTED_FILES else ""
            problem = f"{folder}: lacks {', '.join(missing[:MAX_LISTED_FILES])}{unlisted}"
            advice = "get all files; or rename these, if no others are meant"
            raise DataError(problem, advice=advice)


def published_splits(path: Path, files: Sequence[Path]) -> list[str]:
    """Return the published split of each file by its name or its folder's; empty without splits.

    Args:
        path: The folder of the files, or the only file.
        files: The files.

    Raises:
        DataError: If names of some files say the split and others do not, or if files seem to be
            of several tables, whose splits would be unknown.
    """
    if files == [path]:
        return []
    named = [_split_names(path, file) for file in files]
    if not any(named):
        check_one_table(path, files)
        return []
    for file, splits in zip(files, named, strict=True):
        if len(splits) != 1:
            problem = f"{file}: the file name does not say the split, but other names do"
            if splits:
                problem = f"{file}: the path says the splits {' and '.join(sorted(splits))}"
            raise DataError(problem, SPLIT_TEXT)
    check_one_table(path, files, with_names=False)
    if len(files) == 1:
        return []
    return [splits.pop() for splits in named]


def _split_names(path: Path, file: Path) -> set[str]:
    """Return the splits that the name of a file and of its folders below ``path`` say."""
    shard = SHARD.fullmatch(file.name)
    names = [*file.relative_to(path).parts[:-1], shard[1] if shard else file.stem]
    return {SPLIT_BY_NAME[name.lower()] for name in names if name.lower() in SPLIT_BY_NAME}


def check_one_table(path: Path, files: Sequence[Path], *, with_names: bool = True) -> None:
    """Raise a `DataError` if names of files or folders differ in more than splits and numbers.

    Args:
        path: The folder of the files.
        files: The files.
        with_names: Whether names of files are compared, and not of folders alone.
    """
    first = _common_part(path, files[0], with_names)
    for file in files:
        if _common_part(path, file, with_names) != first:
            problem = (
                f"{path}: contains {file.relative_to(path)} beside {files[0].relative_to(path)}"
            )
            allowed = f"names that differ in numbers and in splits only: {SPLIT_TEXT}"
            raise DataError(problem, allowed, "rename the files, or write them into one table")


def _common_part(path: Path, file: Path, with_names: bool) -> list[str]:
    *folders, file_name = file.relative_to(path).parts
    names = [name for name in folders if name.lower() not in SPLIT_BY_NAME]
    return [NUMBERS.sub("0", name) for name in [*names, *([file_name] if with_names else [])]]
