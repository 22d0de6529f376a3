"""A table of your own: a CSV or Parquet file, columns as features and one as label or target.

No publication: it is yours. What is in the file is part of what a run is.

Every column but those that the keys name is a feature and must hold numbers; all columns that do
not are named in one error. Columns under ``dates`` become days since 1970 began (2024-02-29, or any
form of ISO 8601, from 1678 to 2261). A column under ``categorical`` becomes one of zeros and ones
for each value that stands in the file. A value that no training row has gives a column that is 0 in
training: the weights on it stay as they began. The classes are the different values of the label
column. Values are in order: whole numbers by value, anything else by spelling. With ``target`` in
place of ``label`` the task is regression of that column's numbers.

Empty cells are refused, unless ``missing`` says what becomes of them:

- ``drop`` leaves out rows that have one in any column that is read;
- ``mean`` puts in the mean of the rows that a partition trains on, as it does with scales below (0
  where all of these are empty); in a categorical column ``empty`` is a value of its own;
- ``category`` allows empty cells in columns of categories and texts alone, as a value of their own.

In all columns, what pandas reads as missing (NA, NaN, None, null, ...) and ``?`` count as empty.
One value in several spellings (``0`` and ``0.0``, ``True`` and ``TRUE``) is refused among labels,
clients and categories; so is a number for a missing label, client or group, such as ``-1``. Columns
in which pandas stored its index, by the metadata of Parquet or by the name ``Unnamed: 0``, are no
features.

A feature that equals the label or the target, or stands one to one for the label, is named by a
warning when the table is read and by a note in reports: a model would learn nothing else.

Columns under ``text`` are texts in words, and the only features: one after the other they make the
input of a text model, and every other column must be named by a key. Words are runs of letters,
digits, ``_`` and ``'``, or one of ``. , ! ? ;``, in lower case; the first ``length`` of a row are
read. The ``vocabulary`` words that are commonest in the rows that a partition trains on have tokens
of their own, 0 being the commonest; the token ``vocabulary`` stands for every other word and fills
short texts up. Preparation numbers the words of all rows and keeps the list; only a run tells which
of them are its vocabulary. A cell without a word is empty; ``mean`` and ``category`` let it stay
empty.

Several texts are joined by a blank. With ``text_separator: token`` a token stands between them, and
where a row is too long, its longest text is cut first: of words, the token is a word of its own; a
tokenizer puts between a pair of texts what its model was trained with, such as ``[SEP]``.

With ``tokenizer``, a file of the package tokenizers (``pip install 'fedloom[pretrained]'``) makes
tokens in place of words, as a pretrained model needs them. The first ``length`` are read, with
those that it puts around a text, and its padding fills a short text up. The file is part of a run.

Features and targets are kept as float64. Where they are standardised, it is by mean and deviation
over the rows that a partition trains on: its split train, without clients that are held out. So no
test row has a part in means or deviations.

Memory: a piece of 50,000 rows at a time, the labels, and the different words.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fl.base.errors import DataError, wrap_read_errors
from fl.base.fields import Count
from fl.base.folders import path_of
from fl.base.hashes import change_stamp
from fl.data.download import Source
from fl.data.normalisation import IDENTITY_NORMALISATION, TRAINING_NORMALISATION
from fl.data.prepared import Writer
from fl.data.readers import tables
from fl.data.readers.answers import AnswerSearch
from fl.data.readers.missing_values import check_missing_codes
from fl.data.readers.raw_inputs import Column, ColumnKind, TableReader, TextReader
from fl.data.readers.shards import check_shards
from fl.data.readers.spellings import check_spellings
from fl.data.readers.tables import DATE, NUMBER, PROSE, SPLIT_NAME, TARGET, TEXT, ColumnType
from fl.data.readers.texts import VOCABULARY, FileTokenizer, RowText, TextKeys

log = logging.getLogger(__name__)

ROWS = "rows that are left out"
"""Key of their number among the counts of empty cells by column."""

CELL_ADVICE = "correct the cells, or name columns under `categorical`, `dates`, `text` or `drop`"
MISSING_ADVICE = (
    "write the key `missing` for empty cells; for those in label, client, group or split only"
    " `drop` helps"
)
TARGET_ADVICE = "name the column of classes under `label`, or that of numbers under `target`"


@dataclass(frozen=True)
class Survey:
    """Summary of a table.

    Attributes:
        values: Values in order, of the columns of label, client and group, and of categorical
            columns.
        width: Number of features of a row.
        samples: Number of rows.
        notes: What a reader of results should know of the table.
    """

    values: dict[str, list[str]]
    width: int
    samples: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table(TextKeys):
    """Rows of features, each with a class or a target.

    Attributes:
        path: Path of the file, ``.csv`` or ``.parquet``.
        label: Column of classes.
        target: Column of numbers to predict, in place of `label`.
        client: Column of clients.
        split: Column of a published split: train, val or test.
        group: Column of groups of rows that belong together, such as patients; a group is kept
            whole.
        drop: Columns that are left out.
        categorical: Columns of categories.
        dates: Columns of dates.
        text: Columns of texts, which are joined in this order.
        length: Number of words, or of a tokenizer's tokens, that are read of a row.
        vocabulary: Number of words with a token of their own.
        tokenizer: Path of a file `tokenizer.json`, or of its folder, in place of words.
        missing: Treatment of empty cells; without this key they are refused.
        standardise: Whether each feature, except texts, and the target get mean 0 and standard
            deviation 1 over training rows.
        separator: Separator of the cells of a CSV file.
        text_separator: What stands between the texts of a row: a `blank`, or a `token`.
    """

    path: str
    label: str | None = None
    client: str | None = None
    split: str | None = None
    group: str | None = None
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    missing: Literal["drop", "mean", "category"] | None = None
    standardise: bool = True
    separator: str = ","
    text: tuple[str, ...] = ()
    length: Count = 64
    vocabulary: Count = VOCABULARY
    tokenizer: str | None = None
    target: str | None = None
    text_separator: Literal["blank", "token"] = "blank"

    sources: ClassVar[tuple[Source, ...]] = ()

    @property
    def survey(self) -> Survey:
        """The content of the file, which is read again only after a change."""
        with wrap_read_errors(self.path, "cannot be read as a table"):
            return _survey(self, change_stamp([path_of(self.path)]))

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of features, or of words or tokens."""
        return (self.length,) if self.text else (self.survey.width,)

    @property
    def tokens(self) -> int:
        """Number of tokens; 0 for numbers."""
        return super().tokens if self.text else 0

    @property
    def classes(self) -> int:
        """Number of different labels; 1 for a target."""
        return len(self._class_names(self.survey.values))

    @property
    def task(self) -> str:
        """The task: regression of a target, or classification."""
        return "classification" if self.target is None else "regression"

    def _class_names(self, order: dict[str, list[str]]) -> list[str]:
        """Return the labels in order, or the name of the target."""
        return [str(self.target)] if self.label is None else order[self.label]

    @property
    def natural_clients(self) -> int | None:
        """Number of different clients, or None without a column of clients."""
        return None if self.client is None else len(self.survey.values[self.client])

    @property
    def client_names(self) -> list[str]:
        """Names of the clients by number; empty without clients."""
        return [] if self.client is None else self.survey.values[self.client]

    @property
    def size(self) -> int:
        """Number of rows."""
        return self.survey.samples

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x, float64 features or int32 words; y int64, client, group int32, split int8.

        A target is float64, beside a y of zeros.
        """
        order, column_types = self.survey.values, self.column_types
        features = [column for column in column_types if column not in self.label_columns]
        texts = (text for piece in self.read_pieces(column_types) for text in self._texts(piece))
        encoder = self.encoder(texts) if self.text else None
        for piece in self.read_pieces(column_types):
            if encoder is not None:
                writer.append("x", encoder.encode(self._texts(piece)))
            else:
                writer.append("x", tables.features(piece, features, order))
            if self.label is not None:
                writer.append("y", tables.number_texts(piece[self.label], order[self.label]))
            if self.target is not None:
                writer.append("target", piece[self.target])
                writer.append("y", np.zeros(len(piece[self.target]), np.int64))
            for array, column in (("client", self.client), ("group", self.group)):
                if column is not None:
                    place = tables.number_texts(piece[column], order[column])
                    writer.append(array, place.astype(np.int32))
            if self.split is not None:
                writer.append("split", piece[self.split])
        normalisation = TRAINING_NORMALISATION if self.standardise else IDENTITY_NORMALISATION
        fills = {"missing": "mean"} if self.missing == "mean" else {}
        writer.describe(
            self._class_names(order),
            normalisation=None if encoder is not None else {**normalisation, **fills},
            groups=() if self.group is None else order[self.group],
            inputs={} if self.target is None else {"target": normalisation},
            notes=self.survey.notes,
            **({} if encoder is None else encoder.description),
        )

    @property
    def input_reader(self) -> TableReader | TextReader:
        """The reader of raw inputs, see `fl.data.readers.raw_inputs`."""
        order = self.survey.values
        columns = [name for name in self.column_types if name not in self.label_columns]
        others = (*self.label_columns, *self.drop)
        if self.text:
            return TextReader(
                length=self.length,
                unknown=self.vocabulary,
                tokenizer=self.tokenizer,
                columns=self.text,
                others=others,
                is_joined=self.text_separator == "blank",
                may_be_empty=self.missing in ("mean", "category"),
                separator=self.separator,
            )
        gaps = {"mean": columns, "category": [*self.categorical]}.get(self.missing or "", [])
        kinds: dict[str, ColumnKind] = {
            **dict.fromkeys(columns, "number"),
            **dict.fromkeys(self.dates, "date"),
            **dict.fromkeys(self.categorical, "category"),
        }
        return TableReader(
            tuple(Column(name, kinds[name], tuple(order.get(name, ()))) for name in columns),
            others,
            tuple(gaps),
            self.separator,
        )

    def _texts(self, piece: dict[str, np.ndarray]) -> Sequence[RowText]:
        """Return the text of each row of a piece, or its texts where a token separates them."""
        rows = zip(*(piece[name] for name in self.text), strict=True)
        if self.text_separator == "token":
            return [*rows]
        return [" ".join(cells) for cells in rows]

    def _check_separator(self, path: Path) -> None:
        """Raise a `DataError` if no token can separate the texts of a row."""
        if self.text_separator == "blank":
            return
        if len(self.text) < 2:
            count = f"{len(self.text)} column" + ("" if self.text else "s")
            problem = f"{path}: text_separator is set, but text names {count}"
            raise DataError(problem, advice="name two columns of texts")
        if self.tokenizer is not None:
            if len(self.text) > 2:
                problem = f"{path}: text names {len(self.text)} columns, and a tokenizer separates "
                raise DataError(problem + "two", "two columns, or text_separator: blank")
            FileTokenizer.open(self.tokenizer, self.length).check_pairs()

    def read_pieces(
        self, column_types: dict[str, ColumnType], dropped: Counter[str] | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield pieces of `tables.read_pieces` without the rows that ``missing`` leaves out.

        Args:
            column_types: The type of each column.
            dropped: Counts the rows that are left out, under `ROWS`, and the empty cells of each
                column.
        """
        gaps = {
            None: (),
            "drop": tuple(column_types),
            "mean": tuple(column_types.keys() - {*self.label_columns}),
            "category": (*self.categorical, *self.text),
        }[self.missing]
        further_advice = {None: f", or {MISSING_ADVICE}", "drop": ""}.get(
            self.missing, ", or write `missing: drop`, which leaves out rows with empty cells"
        )
        path, advice = path_of(self.path), CELL_ADVICE + further_advice
        for piece in tables.read_pieces(path, column_types, gaps, self.separator, advice):
            if self.missing == "drop":
                is_filled = {name: _is_filled(cells) for name, cells in piece.items()}
                is_complete = np.all([*is_filled.values()], axis=0)
                piece = {name: cells[is_complete] for name, cells in piece.items()}
                if dropped is not None:
                    dropped[ROWS] += len(is_complete) - int(is_complete.sum())
                    dropped.update({name: int((~cells).sum()) for name, cells in is_filled.items()})
            yield piece

    @property
    def label_columns(self) -> list[str]:
        """The columns of label, target, client, group and split."""
        columns = (self.label, self.target, self.client, self.group, self.split)
        return [column for column in columns if column is not None]

    @property
    def column_types(self) -> dict[str, ColumnType]:
        """The type of each column that is read; a key without a column raises a `DataError`."""
        path = path_of(self.path)
        if self.label is None and self.target is None:
            raise DataError(f"{path}: has neither label nor target", advice=TARGET_ADVICE)
        if self.label is not None and self.target is not None:
            raise DataError(f"{path}: label and target are set", advice=TARGET_ADVICE)
        check_shards([path])
        existing = tables.column_names(path, self.separator)
        single_keys = ("label", "target", "client", "group", "split")
        for key in (*single_keys, "drop", "categorical", "dates", "text"):
            value = getattr(self, key)
            for column in (value,) if isinstance(value, str) else value or ():
                tables.require_column(path, existing, key, column)
        by_key = {
            **dict.fromkeys(self.categorical, TEXT),
            **dict.fromkeys(self.dates, DATE),
            **dict.fromkeys(self.text, PROSE),
        }
        named = [*self.categorical, *self.dates, *self.text, *self.drop, *self.label_columns]
        for column in (*by_key, *self.drop):
            count = named.count(column)
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
        others = column_types.keys() - {*self.text, *self.label_columns} if self.text else ()
        if self.tokenizer is not None and not self.text:
            problem = f"{path}: tokenizer is set, but text is not"
            raise DataError(problem, advice="name columns of texts")
        self._check_separator(path)
        if others:
            listed = ", ".join(repr(name) for name in column_types if name in others)
            problem = f"{path}: text is read alone, but there are the features {listed}"
            raise DataError(problem, advice="name these columns under `drop`, or under `text`")
        types = {name: TARGET if name == self.target else TEXT for name in self.label_columns}
        column_types |= types
        return column_types if self.split is None else {**column_types, self.split: SPLIT_NAME}


def _is_filled(cells: np.ndarray) -> np.ndarray:
    """Return whether each cell of a piece has a value."""
    return cells != "" if cells.dtype == object else ~np.isnan(cells)


@lru_cache(maxsize=32)
def _survey(table: Table, stamped: str) -> Survey:
    path, column_types, samples = path_of(table.path), table.column_types, 0
    targets: set[float] = set()
    values: dict[str, set[str]] = {
        name: set() for name, column_type in column_types.items() if column_type is TEXT
    }
    dropped = Counter[str]()
    answers = AnswerSearch(
        table.label or str(table.target), set(column_types) - {*table.label_columns, *table.text}
    )
    empty = {*column_types} - {*values, *table.label_columns}
    for piece in table.read_pieces(column_types, dropped):
        samples += len(next(iter(piece.values())))
        empty -= {name for name in empty if _is_filled(piece[name]).any()}
        for name in values:
            values[name].update(piece[name])
        answers.add(piece)
        if table.target is not None and len(piece[table.target]):
            targets |= {piece[table.target].min(), piece[table.target].max()}
    if dropped[ROWS] and not samples:
        problem = f"{path}: each of the {dropped[ROWS]:,} rows has an empty cell, so that "
        problem += "`missing: drop` leaves none"
        raise DataError(problem, advice="name columns with many empty cells under `drop`")
    if empty and samples:
        listed = ", ".join(repr(name) for name in column_types if name in empty)
        raise DataError(f"{path}: no row has a value of {listed}", advice="name it under `drop`")
    order = {name: tables.sort_texts(values[name]) for name in values}

    def place(column: str) -> Callable[[str], str]:
        return lambda value: tables.place_of([path], column, value, table.separator)

    if table.label is not None:
        target = f"`target: {table.label}` in place of `label`, if it is a number to predict"
        tables.check_classes(
            path, f"label {table.label!r}", order[table.label], samples, place(table.label), target
        )
    else:
        tables.check_targets(path, f"target {table.target!r}", targets)
    for key, column in (("client", table.client), ("group", table.group)):
        if column is not None:
            check_spellings(path, f"{key} {column!r}", order[column])
            check_missing_codes(path, f"{key} {column!r}", order[column], place(column))
    for name in table.categorical:
        tables.check_categories(path, name, order[name], samples)
    features = column_types.keys() - {*table.label_columns}
    width = sum(len(order[name]) if name in order else 1 for name in features)
    notes = answers.notes
    if dropped[ROWS]:
        count = dropped.pop(ROWS)
        total = count + samples
        columns = ", ".join(f"{n:,} of {name!r}" for name, n in dropped.most_common(3) if n)
        note = f"{count:,} of {total:,} rows are left out, as cells of them are empty: {columns}"
        notes = [note, *notes]
    for note in notes:
        log.warning("%s: %s", path, note)
    return Survey(order, width, samples, tuple(notes))
