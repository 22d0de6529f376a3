"""A table of your own: a CSV or Parquet file, numbers as features and a column as label.

No publication: it is yours. What is in the file is part of what a run is.

Every column but those that the keys name is a feature and must hold numbers; an empty cell or a
text is refused by column and row. The classes are the different values of the label column, in
order: whole numbers by value, anything else by spelling.

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

from fl.base.errors import DataError
from fl.base.places import path_of
from fl.data import columns
from fl.data.contents import stamp
from fl.data.download import Source
from fl.data.prepared import SPLIT, Writer


@dataclass(frozen=True)
class Survey:
    """What a table is found to hold: its features, classes and clients, by name, and its samples.

    mean, sd: of each feature, over the rows that are trained on.
    """

    features: tuple[str, ...]
    classes: tuple[str, ...]
    clients: tuple[str, ...]
    samples: int
    mean: tuple[float, ...]
    sd: tuple[float, ...]


@dataclass(frozen=True)
class Table:
    """Rows of numbers in classes.

    path: the file, ``.csv`` or ``.parquet``; label: the column of classes; client: the column that
    says whose row it is; split: the column of a published split, train, val or test; drop: columns
    to leave out; standardise: bring each feature to mean 0 and deviation 1 over all rows, or over
    those of the split train; separator: between the cells of a CSV file.
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
        """Write x float32 ``[rows, features]``; y int64, client int32 and split int8 ``[rows]``."""
        found = self.survey
        for first, piece in self.pieces(found.features):
            path = path_of(self.path)
            writer.append("x", columns.numbers(path, first, piece, found.features))
            labels = columns.labels(path, first, piece[self.label])
            writer.append("y", columns.numbered(labels, found.classes))
            if self.client is not None:
                clients = columns.labels(path, first, piece[self.client])
                place = columns.numbered(clients, found.clients)
                writer.append("client", place.astype(np.int32))
            if self.split is not None:
                writer.append("split", columns.splits(path, first, piece[self.split]))
        normalisation = {"scale": 1.0, "mean": list(found.mean), "sd": list(found.sd)}
        plain = {"scale": 1.0, "mean": 0.0, "sd": 1.0}
        writer.describe(found.classes, normalisation=normalisation if self.standardise else plain)

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
    moments = _Moments(len(features))
    for first, piece in table.pieces(features):
        x = columns.numbers(path, first, piece, features)
        labels += columns.labels(path, first, piece[table.label])
        if table.client is not None:
            clients.update(columns.labels(path, first, piece[table.client]))
        if table.split is not None:
            x = x[columns.splits(path, first, piece[table.split]) == SPLIT.index("train")]
        moments.add(x)
    if not labels:
        raise DataError(f"{path}: has no rows; allowed: at least one below the header")
    classes = columns.in_order(labels)
    columns.check_classes(path, f"label {table.label!r}", classes, len(labels))
    mean, sd = moments.found()
    return Survey(
        features=features,
        classes=tuple(classes),
        clients=tuple(columns.in_order(clients)),
        samples=len(labels),
        mean=tuple(mean.tolist()),
        sd=tuple(sd.tolist()),
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


class _Moments:
    """Means and deviations of columns whose rows come in pieces (Chan, Golub and LeVeque 1983)."""

    def __init__(self, width: int) -> None:
        self._n, self._mean, self._squares = 0, np.zeros(width), np.zeros(width)

    def add(self, x: np.ndarray) -> None:
        """Take in rows ``[n, width]``."""
        if not len(x):
            return
        mean, total = x.mean(0, dtype=np.float64), self._n + len(x)
        shift = mean - self._mean
        self._squares += ((x - mean) ** 2).sum(0) + shift**2 * (self._n * len(x) / total)
        self._mean += shift * (len(x) / total)
        self._n = total

    def found(self) -> tuple[np.ndarray, np.ndarray]:
        """Means, and deviations; of a column that never changes 1, so that it becomes 0."""
        sd = np.sqrt(self._squares / max(self._n, 1))
        return self._mean, np.where(sd > 0, sd, 1.0)
