"""A table of your own: a CSV or Parquet file, columns as features and one of them as label.

No publication: it is yours. What is in the file is part of what a run is.

Every column but those that the keys name is a feature and must hold numbers; all columns that do
not are named in one error. Columns under ``dates`` become days since 1970 began (2024-02-29, or any
form of ISO 8601, from 1678 to 2261). A column under ``categorical`` becomes one of zeros and ones
for each value that stands in the file. A value that no training row has gives a column that is 0 in
training: the weights on it stay as they began. The classes are the different values of the label
column. Values are in order: whole numbers by value, anything else by spelling.

Empty cells are refused, unless ``missing`` says what becomes of them:

- ``drop`` leaves out rows that have one in any column that is read;
- ``mean`` puts in the mean of the rows that a partition trains on, as it does with scales below (0
  where all of these are empty); in a categorical column ``empty`` is a value of its own;
- ``category`` allows empty cells in categorical columns alone, as a value of their own.

In all columns, what pandas reads as missing (NA, NaN, None, null, ...) and ``?`` count as empty.
One value in several spellings (``0`` and ``0.0``, ``True`` and ``TRUE``) is refused among labels,
clients and categories. Columns in which pandas stored its index, by the metadata of Parquet or by
the name ``Unnamed: 0``, are no features.

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
from fl.data.shards import check_shards
from fl.data.spellings import check_spellings
from fl.data.tables import DATE, NUMBER, SPLIT_NAME, TEXT, ColumnType

CELL_ADVICE = "correct the cells, or name columns under `categorical`, `dates` or `drop`"
MISSING_ADVICE = (
    "write the key `missing` for empty cells; for those in label, client, group or split only"
    " `drop` helps"
)


@dataclass(frozen=True)
class Survey:
    """Summary of a table.

    Attributes:
        values: Values in order, of the columns of label, client and group, and of categorical
            columns.
        width: Number of features of a row.
        samples: Number of rows.
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
        group: Column of groups of rows that belong together, such as patients; a group is kept
            whole.
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
    group: str | None = None
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    missing: Literal["drop", "mean", "category"] | None = None
    standardise: bool = True
    separator: str = ","

    sources: ClassVar[tuple[Source, ...]] = ()

    @property
    def survey(self) -> Survey:
        """The content of the file, which is read again only after a change."""
        with wrap_read_errors(self.path, "cannot be read as a table"):
            return _survey(self, change_stamp([path_of(self.path)]))

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of features."""
        return (self.survey.width,)

    @property
    def classes(self) -> int:
        """Number of different labels."""
        return len(self.survey.values[self.label])

    @property
    def natural_clients(self) -> int | None:
        """Number of different clients, or None without a column of clients."""
        return None if self.client is None else len(self.survey.values[self.client])

    @property
    def size(self) -> int:
        """Number of rows."""
        return self.survey.samples

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x float64 ``[rows, features]``; y int64, client, group int32, split int8."""
        order, column_types = self.survey.values, self.column_types
        features = [column for column in column_types if column not in self.label_columns]
        for piece in self.read_pieces(column_types):
            blocks = [
                np.eye(len(order[name]))[tables.number_texts(piece[name], order[name])]
                if name in order
                else piece[name][:, None]
                for name in features
            ]
            writer.append("x", np.concatenate(blocks, axis=1))
            writer.append("y", tables.number_texts(piece[self.label], order[self.label]))
            for array, column in (("client", self.client), ("group", self.group)):
                if column is not None:
                    place = tables.number_texts(piece[column], order[column])
                    writer.append(array, place.astype(np.int32))
            if self.split is not None:
                writer.append("split", piece[self.split])
        normalisation = {**(TRAINING_NORMALISATION if self.standardise else IDENTITY_NORMALISATION)}
        if self.missing == "mean":
            normalisation["missing"] = "mean"
        groups = () if self.group is None else order[self.group]
        writer.describe(order[self.label], normalisation=normalisation, groups=groups)

    def read_pieces(self, column_types: dict[str, ColumnType]) -> Iterator[dict[str, np.ndarray]]:
        """Yield pieces of `tables.read_pieces` without the rows that ``missing`` leaves out."""
        gaps = {
            None: (),
            "drop": tuple(column_types),
            "mean": tuple(column_types.keys() - {*self.label_columns}),
            "category": self.categorical,
        }[self.missing]
        further_advice = {None: f", or {MISSING_ADVICE}", "drop": ""}.get(
            self.missing, ", or write `missing: drop`, which leaves out rows with empty cells"
        )
        path, advice = path_of(self.path), CELL_ADVICE + further_advice
        for piece in tables.read_pieces(path, column_types, gaps, self.separator, advice):
            if self.missing == "drop":
                is_complete = np.all([_is_filled(cells) for cells in piece.values()], axis=0)
                piece = {name: cells[is_complete] for name, cells in piece.items()}
            yield piece

    @property
    def label_columns(self) -> list[str]:
        """The columns of label, client, group and split."""
        columns = (self.label, self.client, self.group, self.split)
        return [column for column in columns if column is not None]

    @property
    def column_types(self) -> dict[str, ColumnType]:
        """The type of each column that is read; a key without a column raises a `DataError`."""
        path = path_of(self.path)
        check_shards([path])
        existing = tables.column_names(path, self.separator)
        for key in ("label", "client", "group", "split", "drop", "categorical", "dates"):
            value = getattr(self, key)
            for column in (value,) if isinstance(value, str) else value or ():
                tables.require_column(path, existing, key, column)
        by_key = {**dict.fromkeys(self.categorical, TEXT), **dict.fromkeys(self.dates, DATE)}
        for column in by_key:
            count = [*self.categorical, *self.dates, *self.drop, *self.label_columns].count(column)
            if count > 1:
                problem = f"{path}: column {column!r} is named by {count} keys"
                raise DataError(f"{problem}. Allowed: one of them")
        indices = tables.index_columns(path, existing) - by_key.keys()
        column_types = {
            name: by_key.get(name, NUMBER)
            for name in existing
            if name not in self.drop and name not in indices
        }
        if not column_types.keys() - {*self.label_columns}:
            listed = ", ".join(existing)
            raise DataError(f"{path}: no column is left for a feature; the columns are {listed}")
        column_types |= dict.fromkeys(self.label_columns, TEXT)
        return column_types if self.split is None else {**column_types, self.split: SPLIT_NAME}


def _is_filled(cells: np.ndarray) -> np.ndarray:
    """Return whether each cell of a piece has a value."""
    return cells != "" if cells.dtype == object else ~np.isnan(cells)


@lru_cache(maxsize=32)
def _survey(table: Table, stamped: str) -> Survey:
    path, column_types, samples = path_of(table.path), table.column_types, 0
    values: dict[str, set[str]] = {
        name: set() for name, column_type in column_types.items() if column_type is TEXT
    }
    for piece in table.read_pieces(column_types):
        samples += len(piece[table.label])
        for name in values:
            values[name].update(piece[name])
    order = {name: tables.sort_texts(values[name]) for name in values}
    tables.check_classes(path, f"label {table.label!r}", order[table.label], samples)
    for key, column in (("client", table.client), ("group", table.group)):
        if column is not None:
            check_spellings(path, f"{key} {column!r}", order[column])
    for name in table.categorical:
        tables.check_categories(path, name, order[name], samples)
    features = column_types.keys() - {*table.label_columns}
    width = sum(len(order[name]) if name in order else 1 for name in features)
    return Survey(order, width, samples)
