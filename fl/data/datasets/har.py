"""Human activity by smartphone: activities of 30 people from 561 features of sensors.

D. Anguita, A. Ghio, L. Oneto, X. Parra and J. L. Reyes-Ortiz. A Public Domain Dataset for Human
Activity Recognition Using Smartphones. ESANN 2013. doi:10.24432/C54S4K

Licence: CC BY 4.0, as the UCI Machine Learning Repository states.

Source: the repository's zip, in which ``UCI HAR Dataset.zip`` lies. The repository states no
checksum; the one here is of the zip that it gives out now. Of the inner zip are read
``activity_labels.txt`` and, for train and test each, ``X_*.txt`` (561 numbers a row, between -1 and
1), ``y_*.txt`` (activity) and ``subject_*.txt`` (person). The signals that the features were made
of are the data set `har-signals`.

Every person is a client, in the order of their numbers. Rows are in the order of the files, train
before test; ``split`` tells them apart. The authors drew it by person: 21 of them are in the
training files and nine in the test files, so that the partition ``natural: {unseen: published}``
tests on people whom nobody trained on. Features are taken as they are.

Memory: the inner zip (60 MB), and a part's features twice.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar

import numpy as np

from fl.base.errors import DataError
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.readers.archives import iter_members, stream_name
from fl.data.readers.validation import check_missing, check_sizes

INNER_ZIP, INNER_FOLDER = "UCI HAR Dataset.zip", "UCI HAR Dataset/"
ACTIVITY_FILE = f"{INNER_FOLDER}activity_labels.txt"
SUBSETS = ("train", "test")
ARCHIVE = Source(
    "human+activity+recognition+using+smartphones.zip",
    "https://archive.ics.uci.edu/static/public/240/"
    "human+activity+recognition+using+smartphones.zip",
    "c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
)
WINDOWS_BY_SUBSET = {"train": 7_352, "test": 2_947}
FEATURE_COUNT, SUBJECT_COUNT = 561, 30
ACTIVITY_NAMES = (
    *("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS"),
    *("SITTING", "STANDING", "LAYING"),
)


@dataclass(frozen=True)
class HAR:
    """561 features of 2.56 seconds, in six classes, by person.

    Attributes:
        complete: Check the archive against its published checksum and sizes; false reads a subset.
    """

    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (ARCHIVE,)
    shape: ClassVar[tuple[int, ...]] = (FEATURE_COUNT,)
    classes: ClassVar[int] = len(ACTIVITY_NAMES)
    natural_clients: ClassVar[int | None] = SUBJECT_COUNT
    published_splits: ClassVar[tuple[str, ...]] = ("train", "test")

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        return sum(WINDOWS_BY_SUBSET.values()) if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x float32 ``[10299, 561]``; y int64, client int32 and split int8 ``[10299]``."""
        tables = read_tables(raw / self.sources[0].name, {"X": FEATURE_COUNT})
        write_people(tables, writer, self.complete)
        for subset in SUBSETS:
            writer.append("x", tables[f"X_{subset}"].astype(np.float32))
        writer.describe(ACTIVITY_NAMES)


def read_tables(archive: Path, tables: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Read the tables of both subsets: ``y_train``, ``subject_train``, ``X_train`` and so on.

    Labels and subjects are int64 ``[n]``, other tables float64 ``[n, width]``.

    Args:
        archive: The archive.
        tables: Width of each table, by its path in the folder of a subset.

    Raises:
        DataError: For a missing or malformed file.
    """
    kinds = {**tables, "y": 0, "subject": 0}
    names = {
        f"{INNER_FOLDER}{subset}/{kind}_{subset}.txt": n
        for subset in SUBSETS
        for kind, n in kinds.items()
    }
    by_name: dict[str, np.ndarray] = {}
    for _, inner in iter_members(archive, lambda name: name == INNER_ZIP):
        for name, stream in iter_members(
            inner, lambda name: name in names or name == ACTIVITY_FILE
        ):
            if name == ACTIVITY_FILE:
                _check_activities(stream)
                continue
            width = names[name]
            by_name[Path(name).stem] = (
                _feature_rows(stream, width) if width else _label_column(stream)
            )
    check_missing(archive, [name for name in names if Path(name).stem not in by_name])
    for subset in SUBSETS:
        _check_range(archive, f"y_{subset}.txt", by_name[f"y_{subset}"], len(ACTIVITY_NAMES))
        _check_range(archive, f"subject_{subset}.txt", by_name[f"subject_{subset}"], SUBJECT_COUNT)
    for name, table in by_name.items():
        rows = len(by_name[f"y_{name.rpartition('_')[2]}"])
        if len(table) != rows:
            problem = f"{len(table)} rows for {rows} of y_{name.rpartition('_')[2]}.txt"
            raise DataError(f"{archive}: {name}.txt: {problem}")
    return by_name


def write_people(tables: Mapping[str, np.ndarray], writer: Writer, complete: bool) -> None:
    """Write y int64, client int32 and split int8, ``[samples]`` each, train before test.

    Raises:
        DataError: If sizes differ from the published ones and ``complete`` is true.
    """
    sizes = {subset: len(tables[f"y_{subset}"]) for subset in SUBSETS}
    subjects = np.concatenate([tables[f"subject_{subset}"] for subset in SUBSETS])
    people, client = np.unique(subjects, return_inverse=True)
    if complete:
        check_sizes(sizes, WINDOWS_BY_SUBSET, "har", "Anguita et al. 2013")
        check_sizes(
            {"all": len(people)}, {"all": SUBJECT_COUNT}, "har", "Anguita et al. 2013", "subjects"
        )
    writer.save("y", np.concatenate([tables[f"y_{subset}"] for subset in SUBSETS]) - 1)
    writer.save("client", client.astype(np.int32))
    writer.save("split", np.repeat(np.arange(2, dtype=np.int8), [*sizes.values()]))


def _check_activities(stream: BinaryIO) -> None:
    rows = stream.read().decode("latin-1").split()
    if rows != [word for n, name in enumerate(ACTIVITY_NAMES, 1) for word in (str(n), name)]:
        raise DataError(
            f"{stream_name(stream)}: names other activities than {', '.join(ACTIVITY_NAMES)}"
        )


def _check_range(archive: Path, name: str, numbers: np.ndarray, maximum: int) -> None:
    low, high = numbers.min(initial=1), numbers.max(initial=1)
    if low < 1 or high > maximum:
        raise DataError(
            f"{archive}: {name} has {low if low < 1 else high}. Allowed: 1 to {maximum}"
        )


def _feature_rows(stream: BinaryIO, width: int) -> np.ndarray:
    values = _read_numbers(stream, np.float64)
    if values.shape[1:] != (width,):
        problem = f"rows of {values.shape[1]} numbers. Allowed: {width} each"
        raise DataError(f"{stream_name(stream)}: {problem}")
    if not np.isfinite(values).all():
        row = int(np.argwhere(~np.isfinite(values))[0, 0]) + 1
        raise DataError(f"{stream_name(stream)}: row {row} has values that are not finite")
    return values


def _label_column(stream: BinaryIO) -> np.ndarray:
    values = _read_numbers(stream, np.int64)
    if values.shape[1:] != (1,):
        raise DataError(
            f"{stream_name(stream)}: rows of {values.shape[1]} numbers. Allowed: one each"
        )
    return values[:, 0]


def _read_numbers(stream: BinaryIO, kind: type) -> np.ndarray:
    try:
        return np.loadtxt(io.TextIOWrapper(stream, "latin-1"), kind, ndmin=2)
    except ValueError as error:
        problem = f"is no table of numbers, the same number in each row ({error})"
        raise DataError(f"{stream_name(stream)}: {problem}", advice="fetch it again") from error
