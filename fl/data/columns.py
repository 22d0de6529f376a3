"""Columns of a table of the user's own, a CSV or a Parquet file, read in pieces of rows.

Rows are counted from 1, the one below the header being the first.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fl.base.errors import DataError, reading
from fl.base.files import is_file
from fl.data.prepared import SPLIT

ROWS = 50_000
PARQUET = (".parquet", ".pq")
LARGEST = float(np.finfo(np.float32).max)
DROP = "mend it, or name columns that are no features under `drop`"
INDEX = re.compile(r"__index_level_[0-9]+__")
"""The columns in which pandas keeps the index of a table in Parquet."""


def names(path: Path, separator: str = ",") -> list[str]:
    """The columns of the table at ``path``; `DataError` if there is none, or one stands twice.

    A column without a name is left out: pandas writes the numbers of rows so, and a comma at the
    end of lines makes an empty one.
    """
    allowed = "allowed: a CSV file with a header, or Parquet"
    if not is_file(path):
        raise DataError(f"{path}: there is no such file; {allowed}, or a folder of images")
    with reading(path, "cannot be read as a table", allowed):
        header = _parquet_names(path) if path.suffix in PARQUET else _csv_names(path, separator)
    for name in header:
        if header.count(name) > 1:
            raise DataError(f"{path}: column {name!r} stands twice; allowed: each name once")
    return header


def _parquet_names(path: Path) -> list[str]:
    import pyarrow.parquet as pq

    return [name for name in pq.read_schema(path).names if not INDEX.fullmatch(name)]


def _csv_names(path: Path, separator: str) -> list[str]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file, delimiter=separator)
        header = next(rows, None)
        if header is None:
            raise ValueError("it is empty")
        first = next(rows, header)
    if len(first) != len(header):
        raise ValueError(
            f"{len(header)} columns in the header, {len(first)} cells in the first row"
        )
    return [name for name in header if name]


def require(path: Path, there: Iterable[str], key: str, column: str) -> None:
    """Raise a `DataError` unless the table has the column that a config key names."""
    there = list(there)
    if column not in there:
        listed = ", ".join(there[:20]) + (", ..." if len(there) > 20 else "")
        raise DataError(
            f"{path}: {key} is {column!r}, but there is no such column; there are: {listed}"
        )


def pieces(
    path: Path, columns: Sequence[str], texts: Sequence[str], separator: str = ","
) -> Iterator[tuple[int, pd.DataFrame]]:
    """Read some columns of a table, up to `ROWS` rows at a time.

    Args:
        texts: The columns that are taken as they are written, ``01`` for example.

    Yields:
        The number of the first row of a piece, and the piece.

    Raises:
        DataError: For a damaged file.
    """
    first = 1
    read = (_parquet if path.suffix in PARQUET else _csv)(path, columns, texts, separator)
    with reading(path, "cannot be read as a table"):
        for piece in read:
            if len(piece):
                yield first, piece
            first += len(piece)


def _parquet(
    path: Path, columns: Sequence[str], texts: Sequence[str], separator: str
) -> Iterator[pd.DataFrame]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for name in columns:
            _check_type(path, name, file.schema_arrow.field(name).type, name in texts)
        for batch in file.iter_batches(ROWS, columns=list(columns)):
            yield batch.to_pandas(ignore_metadata=True)


def _check_type(path: Path, name: str, type_: Any, text: bool) -> None:
    """Raise a `DataError` for a column of Parquet that holds what no cell of a table is."""
    from pyarrow import types

    number = types.is_integer(type_) or types.is_floating(type_) or types.is_boolean(type_)
    strange = types.is_nested(type_) or types.is_binary(type_) or types.is_large_binary(type_)
    if strange if text else not number:
        allowed = "text or whole numbers" if text else f"numbers; {DROP}"
        raise DataError(
            f"{path}: column {name!r} is of type {str(type_)[:100]}; allowed: {allowed}"
        )


def _csv(
    path: Path, columns: Sequence[str], texts: Sequence[str], separator: str
) -> Iterator[pd.DataFrame]:
    truths: dict[str, bool] = {}
    with pd.read_csv(
        path,
        sep=separator,
        dtype=dict.fromkeys(texts, str),
        keep_default_na=False,  # So that an error can say what stands there.
        chunksize=ROWS,
        low_memory=False,
        encoding="utf-8-sig",
    ) as chunks:
        for chunk in chunks:
            for name in columns:
                # As within a piece, where both make a column of texts.
                truth = chunk[name].dtype == bool
                if truths.setdefault(name, truth) != truth:
                    row = chunk.index[0] + 1
                    raise DataError(
                        f"{path}: column {name!r}: numbers and True or False, from row {row} on;"
                        f" allowed: one of both; {DROP}"
                    )
            # All were read: pandas passes over surplus cells where it is to read some columns.
            yield chunk[list(columns)]


def numbers(path: Path, first: int, piece: pd.DataFrame, columns: Sequence[str]) -> np.ndarray:
    """These columns as float64 ``[rows, columns]``; `DataError` for a cell that is no number, or
    one that no float32 holds.
    """
    cells = np.empty((len(piece), len(columns)))
    for place, column in enumerate(columns):
        values = piece[column]
        if values.dtype.kind not in "biuf":
            values = pd.to_numeric(values.astype(str), errors="coerce")
        cells[:, place] = values.to_numpy(np.float64)
        strange = ~(np.abs(cells[:, place]) <= LARGEST)
        if strange.any():
            row = int(strange.argmax())
            text = str(piece[column].iloc[row])[:100]
            shown = repr(text) if text not in ("", "nan") else "an empty cell"
            raise DataError(
                f"{path}: column {column!r}, row {first + row}: {shown} is no number; {DROP}"
            )
    return cells


def labels(path: Path, first: int, values: pd.Series[Any]) -> list[str]:
    """The cells of a column as text; `DataError` for one that is empty."""
    empty = (values.isna() | (values.astype(str) == "")).to_numpy(bool)
    if empty.any():
        row = first + int(empty.argmax())
        raise DataError(f"{path}: column {values.name!r}, row {row}: is empty; allowed: a name")
    if values.dtype.kind == "f":  # In Parquet alone; of whole numbers, where a cell can be empty.
        # Above that, whole numbers that differ are one float.
        broken = ((values != values.round()) | (values.abs() > 2**53)).to_numpy(bool)
        if broken.any():
            row = int(broken.argmax())
            problem = f"column {values.name!r}, row {first + row}: {values.iloc[row]} is no class"
            raise DataError(f"{path}: {problem}; allowed: text or whole numbers")
        values = values.astype(np.int64)
    return [str(value) for value in values]


def splits(path: Path, first: int, values: pd.Series[Any]) -> np.ndarray:
    """The published split of each row as its number in `SPLIT`, int8; `DataError` for others."""
    texts = labels(path, first, values)
    for row, text in enumerate(texts, first):
        if text not in SPLIT:
            problem = f"{path}: column {values.name!r}, row {row}: is {text!r}"
            raise DataError(f"{problem}; allowed: {', '.join(SPLIT)}")
    return np.array([SPLIT.index(text) for text in texts], np.int8)


def in_order(texts: Iterable[str]) -> list[str]:
    """Different texts in order: whole numbers by their value, anything else by spelling."""
    different = set(texts)
    if all(text.removeprefix("-").isdecimal() and len(text) < 4000 for text in different):
        return sorted(different, key=lambda text: (int(text), text))
    return sorted(different)


def numbered(texts: Iterable[str], order: Sequence[str]) -> np.ndarray:
    """The place of each text in ``order``, int64."""
    place = {text: i for i, text in enumerate(order)}
    return np.array([place[text] for text in texts], np.int64)


def check_classes(path: Path, key: str, classes: Sequence[str], samples: int) -> None:
    """Raise a `DataError` for labels that are no classes."""
    if len(classes) < 2:
        raise DataError(f"{path}: {key} has one value only, {classes[0]!r}; allowed: two classes")
    if 2 * len(classes) > samples:
        problem = f"{path}: {key} has {len(classes)} different values in {samples} rows"
        raise DataError(f"{problem}; allowed: classes of two samples or more, on average")
