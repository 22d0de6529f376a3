"""Columns of a table of the user's own, a CSV or a Parquet file, read in pieces of rows.

Rows are counted from 1, the one below the header being the first.

Texts as tokens: characters of LEAF's alphabet, or words numbered by how common they are. And
tables of texts, row by row.
"""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd

from fl.base.errors import DataError, wrap_read_errors
from fl.base.files import is_file
from fl.data.archives import stream_name
from fl.data.prepared import SPLIT_NAMES

PIECE_ROWS = 50_000
PARQUET_SUFFIXES = (".parquet", ".pq")
MAX_FLOAT32 = float(np.finfo(np.float32).max)
EMPTY_CELLS = ("", "?", "N/A", "NA", "NULL", "NaN", "None", "nan", "null")
"""What stands for an empty cell where numbers or dates stand, without blanks around it."""
PANDAS_INDEX = re.compile(r"__index_level_[0-9]+__")
"""The columns in which pandas keeps the index of a table in Parquet."""
MAX_CATEGORIES = 1000
"""Different values of a column that becomes a feature for each."""
MAX_LISTED_COLUMNS = 20
"""Columns that one message names."""


class CellError(Exception):
    """A cell that is not of its column's kind.

    row: its place in the piece that was read. what: is wrong with it.
    """

    def __init__(self, row: int, what: str) -> None:
        self.row, self.what = row, what
        super().__init__(what)

    @classmethod
    def check(cls, wrong: pd.Series[Any] | np.ndarray, what: Callable[[int], str]) -> None:
        """Raise for the first cell that is marked."""
        marked = np.asarray(wrong, bool)
        if marked.any():
            row = int(marked.argmax())
            raise cls(row, what(row))


@dataclass(frozen=True)
class ColumnType:
    """What the cells of a column are.

    Attributes:
        convert: Makes an array of a piece of the column. The second argument says whether cells may
            be empty; these become NaN, or "" among texts.
        takes: The types of Parquet's columns that are of this kind, by functions of pyarrow.
        allowed: Of these, in words.
        written: Whether cells of a CSV file are taken as they are written, ``01`` for example.
    """

    convert: Callable[[pd.Series[Any], bool], np.ndarray]
    takes: tuple[str, ...]
    allowed: str
    written: bool = True


def _numbers(values: pd.Series[Any], empty: bool) -> np.ndarray:
    """float64; one that no float32 holds is wrong."""
    gaps, cells = values.isna(), values
    if values.dtype.kind not in "biuf":
        texts = values.astype(str).str.strip()
        gaps |= texts.isin(EMPTY_CELLS)
        cells = pd.to_numeric(texts, errors="coerce")
    numbers = np.where(gaps, np.nan, cells.to_numpy(np.float64))
    fits = np.abs(numbers) <= MAX_FLOAT32
    CellError.check(
        ~(fits | gaps if empty else fits), lambda row: _describe_cell(values, row, "number")
    )
    return numbers


def _dates(values: pd.Series[Any], empty: bool) -> np.ndarray:
    """Days since 1970 began, float64; a time without a zone is Greenwich's."""
    gaps, cells = values.isna(), values
    if values.dtype.kind != "M":
        texts = values.astype(str).str.strip()
        gaps |= texts.isin(EMPTY_CELLS)
        cells = texts
    moments = pd.to_datetime(cells, format="ISO8601", errors="coerce", utc=True)
    days = (moments - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
    numbers = np.where(gaps, np.nan, days.to_numpy(np.float64))
    strange = np.isnan(numbers) & ~gaps if empty else np.isnan(numbers)
    CellError.check(strange, lambda row: _describe_cell(values, row, "date (YYYY-MM-DD)"))
    return numbers


def _describe_cell(values: pd.Series[Any], row: int, what: str) -> str:
    text = str(values.iloc[row])[:100]
    shown = "an empty cell" if text.strip().lower() in ("", "nan", "nat", "none") else repr(text)
    return f"{shown} is no {what}"


def _texts(values: pd.Series[Any], empty: bool) -> np.ndarray:
    """Texts without blanks around them; of Parquet's floats, which are whole numbers where a cell
    can be empty, as such.
    """
    gaps = values.isna() | (values.astype(str).str.strip() == "")
    if not empty:
        CellError.check(gaps, lambda _: "is empty. Allowed: a name")
    if values.dtype.kind == "f":
        # Above that, whole numbers that differ are one float.
        broken = ~gaps & ((values != values.round()) | (values.abs() > 2**53))
        allowed = "Allowed: text or whole numbers"
        CellError.check(broken, lambda row: f"{values.iloc[row]} is no class; {allowed}")
        values = values.fillna(0).astype(np.int64)
    pairs = zip(values, gaps, strict=True)
    return np.array(["" if gap else str(value).strip() for value, gap in pairs], object)


def _splits(values: pd.Series[Any], empty: bool) -> np.ndarray:
    """Names of splits."""
    texts = _texts(values, empty)
    known = np.isin(texts, [*SPLIT_NAMES, ""])
    CellError.check(~known, lambda row: f"is {texts[row]!r}. Allowed: {', '.join(SPLIT_NAMES)}")
    return texts


NAME_TYPES = (
    "is_string",
    "is_large_string",
    "is_integer",
    "is_boolean",
    "is_floating",
    "is_dictionary",
)
NUMBER = ColumnType(_numbers, ("is_integer", "is_floating", "is_boolean"), "numbers", written=False)
DATE = ColumnType(_dates, ("is_date", "is_timestamp", "is_string", "is_large_string"), "dates")
TEXT = ColumnType(_texts, NAME_TYPES, "text or whole numbers")
SPLIT_NAME = ColumnType(_splits, NAME_TYPES, "text or whole numbers")


def column_names(path: Path, separator: str = ",", other: str = "") -> list[str]:
    """The columns of the table at ``path``; `DataError` if there is none, or one stands twice.

    A column without a name is left out: pandas writes the numbers of rows so, and a comma at the
    end of lines makes an empty one.

    Args:
        other: What might lie there instead, for the error where nothing does.
    """
    allowed = "Allowed: a CSV file with a header, or Parquet"
    if not is_file(path):
        raise DataError(f"{path}: there is no such file; {allowed}{other}")
    with wrap_read_errors(path, "cannot be read as a table", allowed):
        header = (
            _parquet_names(path) if path.suffix in PARQUET_SUFFIXES else _csv_names(path, separator)
        )
    for name in header:
        if header.count(name) > 1:
            raise DataError(f"{path}: column {name!r} stands twice. Allowed: each name once")
    return header


def _parquet_names(path: Path) -> list[str]:
    import pyarrow.parquet as pq

    return [name for name in pq.read_schema(path).names if not PANDAS_INDEX.fullmatch(name)]


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


def require_column(path: Path, there: Iterable[str], key: str, column: str) -> None:
    """Raise a `DataError` unless the table has the column that a config key names."""
    there = list(there)
    if column not in there:
        listed = ", ".join(there[:20]) + (", ..." if len(there) > 20 else "")
        near = difflib.get_close_matches(column, there, n=1, cutoff=0.5)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise DataError(
            f"{path}: {key} is {column!r}, but there is no such column{hint}; there are: {listed}"
        )


def read_pieces(
    path: Path,
    kinds: Mapping[str, ColumnType],
    gaps: Collection[str] = (),
    separator: str = ",",
    remedy: str = "",
) -> Iterator[dict[str, np.ndarray]]:
    """Read some columns of a table, up to `PIECE_ROWS` rows at a time.

    Args:
        kinds: Of the columns that are read.
        gaps: The columns in which cells may be empty.
        remedy: What an error for cells that are not of their kind ends with.

    Yields:
        A piece of each column, as its kind converts it.

    Raises:
        DataError: For a damaged file; after the last row, for all columns with cells that are not
            of their kind.
    """
    wrong: dict[str, str] = {}
    first = 1
    with wrap_read_errors(path, "cannot be read as a table"):
        for piece in (_parquet if path.suffix in PARQUET_SUFFIXES else _csv)(
            path, kinds, separator, wrong
        ):
            converted = {}
            for name in kinds.keys() - wrong.keys():
                try:
                    converted[name] = kinds[name].convert(piece[name], name in gaps)
                except CellError as problem:
                    row = first + problem.row
                    wrong[name] = f"column {name!r}, row {row}: {problem.what}"
            if len(piece) and not wrong:
                yield converted
            first += len(piece)
    if wrong:
        told = [wrong[name] for name in kinds if name in wrong]
        more = (
            [f"and {len(told) - MAX_LISTED_COLUMNS} columns more"]
            if len(told) > MAX_LISTED_COLUMNS
            else []
        )
        raise DataError(
            f"{path}: {'; '.join([*told[:MAX_LISTED_COLUMNS], *more])}{remedy and '; '}{remedy}"
        )


def _parquet(
    path: Path, kinds: Mapping[str, ColumnType], separator: str, wrong: dict[str, str]
) -> Iterator[pd.DataFrame]:
    import pyarrow.parquet as pq
    from pyarrow import int8, types

    with pq.ParquetFile(path) as file:
        for name, kind in kinds.items():
            type_ = file.schema_arrow.field(name).type
            if not any(getattr(types, takes)(type_) for takes in kind.takes):
                shown = str(type_)[:100]
                wrong[name] = f"column {name!r} is of type {shown}. Allowed: {kind.allowed}"
        fine = [name for name in kinds if name not in wrong]
        for batch in file.iter_batches(PIECE_ROWS, columns=fine):
            # Truths with gaps would be objects.
            cast = {
                name: batch[name].cast(int8())
                if kinds[name] is NUMBER and types.is_boolean(batch[name].type)
                else batch[name]
                for name in fine
            }
            yield pd.DataFrame({name: values.to_pandas() for name, values in cast.items()})


def _csv(
    path: Path, kinds: Mapping[str, ColumnType], separator: str, wrong: dict[str, str]
) -> Iterator[pd.DataFrame]:
    truths: dict[str, bool] = {}
    with pd.read_csv(
        path,
        sep=separator,
        dtype={name: str for name, kind in kinds.items() if kind.written},
        keep_default_na=False,  # So that an error can say what stands there.
        chunksize=PIECE_ROWS,
        low_memory=False,
        encoding="utf-8-sig",
    ) as chunks:
        for chunk in chunks:
            for name in kinds.keys() - wrong.keys():
                # As within a piece, where both make a column of texts.
                truth = chunk[name].dtype == bool
                if truths.setdefault(name, truth) != truth:
                    row = chunk.index[0] + 1
                    mixed = "numbers and True or False"
                    wrong[name] = (
                        f"column {name!r}: {mixed}, from row {row} on. Allowed: one of both"
                    )
            # All were read: pandas passes over surplus cells where it is to read some columns.
            yield chunk[list(kinds)]


def sort_texts(texts: Iterable[str]) -> list[str]:
    """Different texts in order: whole numbers by their value, anything else by spelling."""
    different = set(texts)
    if all(text.removeprefix("-").isdecimal() and len(text) < 4000 for text in different):
        return sorted(different, key=lambda text: (int(text), text))
    return sorted(different)


def number_texts(texts: Iterable[str], order: Sequence[str]) -> np.ndarray:
    """The place of each text in ``order``, int64."""
    place = {text: i for i, text in enumerate(order)}
    return np.array([place[text] for text in texts], np.int64)


def check_classes(path: Path, key: str, classes: Sequence[str], samples: int) -> None:
    """Raise a `DataError` for labels that are no classes."""
    if not samples:
        raise DataError(f"{path}: has no rows. Allowed: at least one below the header")
    if len(classes) < 2:
        raise DataError(f"{path}: {key} has one value only, {classes[0]!r}. Allowed: two classes")
    _check_repeated(path, key, classes, samples)


def check_categories(path: Path, name: str, values: Sequence[str], samples: int) -> None:
    """Raise a `DataError` for a column with too many values to be as many features."""
    if len(values) > MAX_CATEGORIES:
        problem = f"{path}: column {name!r} has {len(values)} different values"
        raise DataError(f"{problem}. Allowed: up to {MAX_CATEGORIES}, or name it under `drop`")
    _check_repeated(path, f"column {name!r}", values, samples)


def _check_repeated(path: Path, key: str, values: Sequence[str], samples: int) -> None:
    """Raise a `DataError` for a column in which nearly every row has a value of its own."""
    if 2 * len(values) > samples:
        problem = f"{path}: {key} has {len(values)} different values in {samples} rows"
        raise DataError(f"{problem}. Allowed: classes of two samples or more, on average")


def csv_rows(stream: BinaryIO, encoding: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file, each with its number from 1.

    Raises:
        DataError: For what is no such row; it names the stream.
    """
    rows = csv.reader(io.TextIOWrapper(stream, encoding, newline=""), strict=True)
    with wrap_read_errors(stream_name(stream), "is no csv file"):
        yield from enumerate(rows, 1)
