"""A table of your own: a CSV or Parquet file, numbers as features and a column as label.

No publication: it is yours. What is in the file is part of what a run is.

Every column but those that the keys name is a feature and must hold numbers; an empty cell or a
text is refused by column and row. The classes are the different values of the label column, in
order: whole numbers by value, anything else by spelling.

Features are kept as float64. Where they are standardised, it is by mean and deviation over the
rows that a partition trains on: its split train, without clients that are held out.

Memory: a piece of 50,000 rows at a time, and the labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd

from fl.base.errors import DataError, reading
from fl.base.places import path_of
from fl.data import columns
from fl.data.contents import stamp
from fl.data.download import Source
from fl.data.normalisation import OPEN
from fl.data.prepared import IDENTITY, Writer


@dataclass(frozen=True)
class Survey:
    """What a table holds: its features, classes and clients, by name, and how many rows."""

    features: tuple[str, ...]
    classes: tuple[str, ...]
    clients: tuple[str, ...]
    samples: int


@dataclass(frozen=True)
class Table:
    """Rows of numbers in classes.

    path: the file, ``.csv`` or ``.parquet``; label: the column of classes; client: the column that
    says whose row it is; split: the column of a published split, train, val or test; drop: columns
    to leave out; standardise: bring each feature to mean 0 and deviation 1 over the rows that are
    trained on; separator: between the cells of a CSV file.
    """

    path: str
    label: str
    client: str | None = None
    split: str | None = None
    drop: tuple[str, ...] = ()
    standardise: bool = True
    separator: str = ","

    sources: ClassVar[tuple[Source, ...]] = ()

    @property
    def survey(self) -> Survey:
        """What is in the file; it is read once for each time that it has changed."""
        with reading(self.path, "cannot be read as a table"):
            return _survey(self, stamp([path_of(self.path)]))

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of features."""
        return (len(self.survey.features),)

    @property
    def classes(self) -> int:
        """How many different labels there are."""
        return len(self.survey.classes)

    @property
    def natural(self) -> int | None:
        """How many different clients there are, if there is a column of them."""
        return len(self.survey.clients) or None

    @property
    def size(self) -> int:
        """How many rows there are."""
        return self.survey.samples

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x float64 ``[rows, features]``; y int64, client int32 and split int8 ``[rows]``."""
        survey = self.survey
        for first, piece in self.pieces(survey.features):
            path = path_of(self.path)
            writer.append("x", columns.numbers(path, first, piece, survey.features))
            labels = columns.labels(path, first, piece[self.label])
            writer.append("y", columns.numbered(labels, survey.classes))
            if self.client is not None:
                clients = columns.labels(path, first, piece[self.client])
                place = columns.numbered(clients, survey.clients)
                writer.append("client", place.astype(np.int32))
            if self.split is not None:
                writer.append("split", columns.splits(path, first, piece[self.split]))
        writer.describe(survey.classes, normalisation=OPEN if self.standardise else IDENTITY)

    def pieces(self, features: Sequence[str]) -> Iterator[tuple[int, pd.DataFrame]]:
        """The columns of these features and those that keys name; see `columns.pieces`."""
        named = self.named
        return columns.pieces(path_of(self.path), [*features, *named], named, self.separator)

    @property
    def named(self) -> list[str]:
        """The columns that keys give a meaning."""
        return [column for column in (self.label, self.client, self.split) if column is not None]


@lru_cache(maxsize=32)
def _survey(table: Table, stamped: str) -> Survey:
    path, features = path_of(table.path), _features(table)
    labels: list[str] = []
    clients: set[str] = set()
    for first, piece in table.pieces(features):
        columns.numbers(path, first, piece, features)
        labels += columns.labels(path, first, piece[table.label])
        if table.client is not None:
            clients.update(columns.labels(path, first, piece[table.client]))
        if table.split is not None:
            columns.splits(path, first, piece[table.split])
    if not labels:
        raise DataError(f"{path}: has no rows; allowed: at least one below the header")
    classes = columns.in_order(labels)
    columns.check_classes(path, f"label {table.label!r}", classes, len(labels))
    return Survey(
        features=features,
        classes=tuple(classes),
        clients=tuple(columns.in_order(clients)),
        samples=len(labels),
    )


def _features(table: Table) -> tuple[str, ...]:
    path = path_of(table.path)
    there = columns.names(path, table.separator)
    for key in ("label", "client", "split"):
        if getattr(table, key) is not None:
            columns.require(path, there, key, getattr(table, key))
    for column in table.drop:
        columns.require(path, there, "drop", column)
    features = tuple(name for name in there if name not in {*table.named, *table.drop})
    if not features:
        raise DataError(f"{path}: has no column left for a feature; there are: {', '.join(there)}")
    return features
