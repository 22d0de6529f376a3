"""Human activity by telephone: what 30 people do, told by 561 features of a smartphone's sensors.

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
from fl.data.archives import iter_members, stream_name
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.validation import check_missing, check_sizes

INNER, FOLDER = "UCI HAR Dataset.zip", "UCI HAR Dataset/"
ACTIVITIES = f"{FOLDER}activity_labels.txt"
PARTS = ("train", "test")
ARCHIVE = Source(
    "human+activity+recognition+using+smartphones.zip",
    "https://archive.ics.uci.edu/static/public/240/"
    "human+activity+recognition+using+smartphones.zip",
    "c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
)
PUBLISHED = {"train": 7_352, "test": 2_947}
FEATURES, SUBJECTS = 561, 30
CLASSES = (
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
    shape: ClassVar[tuple[int, ...]] = (FEATURES,)
    classes: ClassVar[int] = len(CLASSES)
    natural_clients: ClassVar[int | None] = SUBJECTS
    published_splits: ClassVar[tuple[str, ...]] = ("train", "test")

    @property
    def size(self) -> int | None:
        """How many samples there are; None of a subset."""
        return sum(PUBLISHED.values()) if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x float32 ``[10299, 561]``; y int64, client int32 and split int8 ``[10299]``."""
        tables = read_tables(raw / self.sources[0].name, {"X": FEATURES})
        write_people(tables, writer, self.complete)
        for subset in PARTS:
            writer.append("x", tables[f"X_{subset}"].astype(np.float32))
        writer.describe(CLASSES)


def read_tables(archive: Path, tables: Mapping[str, int]) -> dict[str, np.ndarray]:
    """``y_train`` and ``subject_train`` int64 ``[n]``, and tables such as ``X_train`` float64 ``[n,
    561]``; the same for ``test``.

    Args:
        tables: Where each table lies in the folder of a part, and how many numbers a row has.

    Raises:
        DataError: For a file that is missing or is not what it should be.
    """
    kinds = {**tables, "y": 0, "subject": 0}
    names = {
        f"{FOLDER}{subset}/{kind}_{subset}.txt": n for subset in PARTS for kind, n in kinds.items()
    }
    by_name: dict[str, np.ndarray] = {}
    for _, inner in iter_members(archive, lambda name: name == INNER):
        for name, stream in iter_members(inner, lambda name: name in names or name == ACTIVITIES):
            if name == ACTIVITIES:
                _check_activities(stream)
                continue
            width = names[name]
            by_name[Path(name).stem] = _rows(stream, width) if width else _numbers(stream)
    check_missing(archive, [name for name in names if Path(name).stem not in by_name])
    for subset in PARTS:
        _check_range(archive, f"y_{subset}.txt", by_name[f"y_{subset}"], len(CLASSES))
        _check_range(archive, f"subject_{subset}.txt", by_name[f"subject_{subset}"], SUBJECTS)
    for name, table in by_name.items():
        rows = len(by_name[f"y_{name.rpartition('_')[2]}"])
        if len(table) != rows:
            problem = f"{len(table)} rows for {rows} of y_{name.rpartition('_')[2]}.txt"
            raise DataError(f"{archive}: {name}.txt: {problem}")
    return by_name


def write_people(tables: Mapping[str, np.ndarray], writer: Writer, complete: bool) -> None:
    """Write y int64, client int32 and split int8, ``[samples]`` each, train before test.

    Raises:
        DataError: If the set is to be ``complete`` and is not.
    """
    sizes = {subset: len(tables[f"y_{subset}"]) for subset in PARTS}
    subjects = np.concatenate([tables[f"subject_{subset}"] for subset in PARTS])
    people, client = np.unique(subjects, return_inverse=True)
    if complete:
        check_sizes(sizes, PUBLISHED, "har", "Anguita et al. 2013")
        check_sizes(
            {"all": len(people)}, {"all": SUBJECTS}, "har", "Anguita et al. 2013", "subjects"
        )
    writer.save("y", np.concatenate([tables[f"y_{subset}"] for subset in PARTS]) - 1)
    writer.save("client", client.astype(np.int32))
    writer.save("split", np.repeat(np.arange(2, dtype=np.int8), [*sizes.values()]))


def _check_activities(stream: BinaryIO) -> None:
    rows = stream.read().decode("latin-1").split()
    if rows != [word for n, name in enumerate(CLASSES, 1) for word in (str(n), name)]:
        raise DataError(f"{stream_name(stream)}: names other activities than {', '.join(CLASSES)}")


def _check_range(archive: Path, name: str, numbers: np.ndarray, most: int) -> None:
    low, high = numbers.min(initial=1), numbers.max(initial=1)
    if low < 1 or high > most:
        raise DataError(f"{archive}: {name} has {low if low < 1 else high}. Allowed: 1 to {most}")


def _rows(stream: BinaryIO, width: int) -> np.ndarray:
    values = _table(stream, np.float64)
    if values.shape[1:] != (width,):
        problem = f"rows of {values.shape[1]} numbers. Allowed: {width} each"
        raise DataError(f"{stream_name(stream)}: {problem}")
    if not np.isfinite(values).all():
        row = int(np.argwhere(~np.isfinite(values))[0, 0]) + 1
        raise DataError(f"{stream_name(stream)}: row {row} has what is no number")
    return values


def _numbers(stream: BinaryIO) -> np.ndarray:
    values = _table(stream, np.int64)
    if values.shape[1:] != (1,):
        raise DataError(
            f"{stream_name(stream)}: rows of {values.shape[1]} numbers. Allowed: one each"
        )
    return values[:, 0]


def _table(stream: BinaryIO, kind: type) -> np.ndarray:
    try:
        return np.loadtxt(io.TextIOWrapper(stream, "latin-1"), kind, ndmin=2)
    except ValueError as error:
        problem = f"is no table of numbers, the same number in each row ({error})"
        raise DataError(f"{stream_name(stream)}: {problem}; fetch it again") from error
