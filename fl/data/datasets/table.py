"""A table of your own: a CSV or Parquet file, columns as features and one of them as label.

No publication: it is yours. What is in the file is part of what a run is.

Every column but those that the keys name is a feature and must hold numbers; all columns that do
not are named in one error. Columns under ``dates`` become days since 1970 began (2024-02-29, or any
form of ISO 8601). A column under ``categorical`` becomes one of zeros and ones for each value that
stands in the file. A value that no training row has gives a column that is 0 in training: the
weights on it stay as they began. The classes are the different values of the label column. Values
are in order: whole numbers by value, anything else by spelling.

Empty cells are refused, unless ``missing`` says what becomes of them:

- ``drop`` leaves out rows that have one in any column that is read;
- ``mean`` puts in the mean of the rows that a partition trains on, as it does with scales below (0
  where all of these are empty); in a categorical column ``empty`` is a value of its own;
- ``category`` allows empty cells in categorical columns alone, as a value of their own.

In columns of numbers and dates, what pandas reads as missing (NA, NaN, null, ...) and ``?`` count
as empty.

Features are kept as float64. Where they are standardised, it is by mean and deviation over the
rows that a partition trains on: its split train, without clients that are held out. So no test row
has a part in means or deviations.

Memory: a piece of 50,000 rows at a time, and the labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fl.base.errors import DataError, wrap_read_errors
from fl.base.folders import path_of
from fl.data import tables
from fl.data.download import Source
from fl.data.inputs import IDENTITY_NORMALISATION, TRAINING_NORMALISATION
from fl.data.own_files import change_stamp
from fl.data.prepared import Writer
from fl.data.tables import DATE, NUMBER, SPLIT_NAME, TEXT, ColumnType

REMEDY = "mend them, name columns under `categorical`, `dates` or `drop`"
UNSAID = (
    "say under `missing` what becomes of empty cells; in label, client or split only `drop` helps"
)


@dataclass(frozen=True)
class Survey:
    """What a table holds: the values of its label and client and of categorical columns, in order,
    how many numbers a row becomes, and how many rows there are.
    """

    values: dict[str, list[str]]
    width: int
    samples: int


@dataclass(frozen=True)
class Table:
    """Rows of features in classes.

    Attributes:
        path: Path of the file, ``.csv`` or ``.parquet``.
        label: Column of classes.
        client: Column of clients.
        split: Column of a published split: train, val or test.
        drop: Columns that are left out.
        categorical: Columns of categories.
        dates: Columns of dates.
        missing: Treatment of empty cells; without this key they are refused.
        standardise: Whether each feature gets mean 0 and standard deviation 1 over training rows.
        separator: Separator of the cells of a CSV file.
    """

    path: str
    label: str
    client: str | None = None
    split: str | None = None
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    missing: Literal["drop", "mean", "category"] | None = None
    standardise: bool = True
    separator: str = ","

    sources: ClassVar[tuple[Source, ...]] = ()

    @property
    def survey(self) -> Survey:
        """What is in the file; it is read once for each time that it has changed."""
        with wrap_read_errors(self.path, "cannot be read as a table"):
            return _survey(self, change_stamp([path_of(self.path)]))

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of features."""
        return (self.survey.width,)

    @property
    def classes(self) -> int:
        """How many different labels there are."""
        return len(self.survey.values[self.label])

    @property
    def natural_clients(self) -> int | None:
        """How many different clients there are, if there is a column of them."""
        return None if self.client is None else len(self.survey.values[self.client])

    @property
    def size(self) -> int:
        """How many rows there are."""
        return self.survey.samples

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x float64 ``[rows, features]``; y int64, client int32 and split int8 ``[rows]``."""
        order, kinds = self.survey.values, self.kinds
        features = [column for column in kinds if column not in self.named]
        for piece in self.pieces(kinds):
            blocks = [
                np.eye(len(order[name]))[tables.number_texts(piece[name], order[name])]
                if name in order
                else piece[name][:, None]
                for name in features
            ]
            writer.append("x", np.concatenate(blocks, axis=1))
            writer.append("y", tables.number_texts(piece[self.label], order[self.label]))
            if self.client is not None:
                place = tables.number_texts(piece[self.client], order[self.client])
                writer.append("client", place.astype(np.int32))
            if self.split is not None:
                writer.append("split", piece[self.split])
        normalisation = {**(TRAINING_NORMALISATION if self.standardise else IDENTITY_NORMALISATION)}
        if self.missing == "mean":
            normalisation["missing"] = "mean"
        writer.describe(order[self.label], normalisation=normalisation)

    def pieces(self, kinds: dict[str, ColumnType]) -> Iterator[dict[str, np.ndarray]]:
        """See `tables.read_pieces`; without the rows that ``missing`` leaves out."""
        gaps = {
            None: (),
            "drop": tuple(kinds),
            "mean": tuple(kinds.keys() - {*self.named}),
            "category": self.categorical,
        }[self.missing]
        more = {None: f", or {UNSAID}", "drop": ""}.get(
            self.missing, ", or say `missing: drop`, which leaves out rows with empty cells"
        )
        path, remedy = path_of(self.path), REMEDY + more
        for piece in tables.read_pieces(path, kinds, gaps, self.separator, remedy):
            if self.missing == "drop":
                whole = np.all([_there(cells) for cells in piece.values()], axis=0)
                piece = {name: cells[whole] for name, cells in piece.items()}
            yield piece

    @property
    def named(self) -> list[str]:
        """The columns that keys give a meaning."""
        return [column for column in (self.label, self.client, self.split) if column is not None]

    @property
    def kinds(self) -> dict[str, ColumnType]:
        """The kind of each column that is read; `DataError` for a key that names none of them."""
        path = path_of(self.path)
        there = tables.column_names(path, self.separator)
        for key in ("label", "client", "split", "drop", "categorical", "dates"):
            value = getattr(self, key)
            for column in (value,) if isinstance(value, str) else value or ():
                tables.require_column(path, there, key, column)
        by_key = {**dict.fromkeys(self.categorical, TEXT), **dict.fromkeys(self.dates, DATE)}
        for column in by_key:
            count = [*self.categorical, *self.dates, *self.drop, *self.named].count(column)
            if count > 1:
                problem = f"{path}: column {column!r} stands under {count} keys"
                raise DataError(f"{problem}. Allowed: one of them")
        kinds = {name: by_key.get(name, NUMBER) for name in there if name not in self.drop}
        if not kinds.keys() - {*self.named}:
            listed = ", ".join(there)
            raise DataError(f"{path}: has no column left for a feature; there are: {listed}")
        kinds |= dict.fromkeys(self.named, TEXT)
        return kinds if self.split is None else {**kinds, self.split: SPLIT_NAME}


def _there(cells: np.ndarray) -> np.ndarray:
    """Which cells are not empty, as `tables.read_pieces` gives them."""
    return cells != "" if cells.dtype == object else ~np.isnan(cells)


@lru_cache(maxsize=32)
def _survey(table: Table, stamped: str) -> Survey:
    path, kinds, samples = path_of(table.path), table.kinds, 0
    values: dict[str, set[str]] = {name: set() for name, kind in kinds.items() if kind is TEXT}
    for piece in table.pieces(kinds):
        samples += len(piece[table.label])
        for name in values:
            values[name].update(piece[name])
    order = {name: tables.sort_texts(values[name]) for name in values}
    tables.check_classes(path, f"label {table.label!r}", order[table.label], samples)
    for name in table.categorical:
        tables.check_categories(path, name, order[name], samples)
    features = kinds.keys() - {*table.named}
    width = sum(len(order[name]) if name in order else 1 for name in features)
    return Survey(order, width, samples)
