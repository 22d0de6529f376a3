"""Columns of tables, CSV or Parquet files, read in pieces of rows.

Rows are counted from 1, the first row below the header.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd

from fl.base.errors import (
    DataError,
    printed_form,
    quoted_names,
    similar_name,
    wrap_read_errors,
)
from fl.base.files import is_file, is_folder
from fl.data.prepared import SPLIT_NAMES
from fl.data.readers.archives import stream_name
from fl.data.readers.missing_values import EMPTY_CELLS, check_missing_codes
from fl.data.readers.spellings import NUMBER_TEXT, check_spellings
from fl.data.readers.texts import WORD_PATTERN

PIECE_ROWS = 50_000
PARQUET_SUFFIXES = (".parquet", ".pq")
MAX_FLOAT32 = float(np.finfo(np.float32).max)
PANDAS_INDEX = re.compile(r"__index_level_[0-9]+__")
"""Names of columns in which pandas stores the index of a table in Parquet."""
PANDAS_UNNAMED = re.compile(r"Unnamed: [0-9]+(\.[0-9]+)?")
"""Names that pandas gives to columns of a CSV file without a name, mostly an index."""
FIRST_DATE, LAST_DATE = pd.Timestamp.min.tz_localize("UTC"), pd.Timestamp.max.tz_localize("UTC")
"""Dates between which a time in nanoseconds has 64 bits."""
SEPARATORS = (";", "\t", "|", ",")
MAX_CATEGORIES = 1000
"""Largest number of different values of a categorical column."""
MAX_LISTED_COLUMNS = 20
"""Largest number of columns that one message names."""


class CellError(Exception):
    """A cell whose value does not fit the type of its column.

    Attributes:
        row: Index of the row in the piece that was read.
        problem: What is wrong, a predicate.
    """

    def __init__(self, row: int, problem: str) -> None:
        self.row, self.problem = row, problem
        super().__init__(problem)

    @classmethod
    def check(cls, is_wrong: pd.Series[Any] | np.ndarray, problem: Callable[[int], str]) -> None:
        """Raise for the first wrong cell; ``problem`` returns the text for its row."""
        is_marked = np.asarray(is_wrong, bool)
        if is_marked.any():
            row = int(is_marked.argmax())
            raise cls(row, problem(row))


@dataclass(frozen=True)
class ColumnType:
    """Type of the cells of a column.

    Attributes:
        convert: Returns an array from a piece of the column. The second argument says whether
            cells may be empty; these become NaN, or "" among texts.
        arrow_types: Names of pyarrow's functions for the types of Parquet columns that are
            allowed.
        allowed: The allowed values in words.
        as_text: Whether cells of a CSV file are read as text, such as ``01``.
    """

    convert: Callable[[pd.Series[Any], bool], np.ndarray]
    arrow_types: tuple[str, ...]
    allowed: str
    as_text: bool = True


def _numbers(values: pd.Series[Any], empty: bool) -> np.ndarray:
    """Return numbers as float64; numbers beyond float32 are refused."""
    gaps, cells = values.isna(), values
    if values.dtype.kind not in "biuf":
        texts = values.astype(str).str.strip()
        gaps |= texts.isin(EMPTY_CELLS)
        cells = pd.to_numeric(texts, errors="coerce")
    numbers = np.where(gaps, np.nan, cells.to_numpy(np.float64))
    is_valid = np.abs(numbers) <= MAX_FLOAT32
    is_wrong = ~(is_valid | gaps if empty else is_valid)
    CellError.check(is_wrong, lambda row: _describe_cell(values, row, _number_text(numbers[row])))
    return numbers


def _targets(values: pd.Series[Any], empty: bool) -> np.ndarray:
    """Return numbers to predict as float64, see `_numbers`."""
    if values.dtype == bool and len(values):
        problem = f"{values.iloc[0]} is no number to predict, but one of two classes"
        raise CellError(0, f"{problem}. Allowed: {TARGET.allowed}")
    return _numbers(values, empty)


DATE_EXAMPLE = "2024-12-31"
DATE_PATTERN = re.compile(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}\b")
"""Beginning of what seems to be a date, in any order of year, month and day."""


def _number_text(value: float) -> str:
    """Return what a cell should hold: a number, or a number within the limits of float32."""
    return "number" if np.isnan(value) else f"number from -{MAX_FLOAT32:.3g} to {MAX_FLOAT32:.3g}"


def _dates(values: pd.Series[Any], empty: bool) -> np.ndarray:
    """Return days since the begin of 1970 as float64; a time without a zone is UTC."""
    gaps, cells = values.isna(), values
    if values.dtype.kind != "M":
        texts = values.astype(str).str.strip()
        gaps |= texts.isin(EMPTY_CELLS)
        cells = texts.where(texts.str.match("[0-9]"))  # pandas reads "now" and "today", too.
    moments = pd.to_datetime(cells, format="ISO8601", errors="coerce", utc=True)
    moments = moments.where((moments >= FIRST_DATE) & (moments <= LAST_DATE))
    days = (moments - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
    numbers = np.where(gaps, np.nan, days.to_numpy(np.float64))
    is_wrong = np.isnan(numbers) & ~gaps if empty else np.isnan(numbers)
    CellError.check(is_wrong, lambda row: f"{_describe_cell(values, row, 'date')}. {DATE_TEXT}")
    return numbers


DATE_TEXT = (
    f"Allowed: year-month-day, such as {DATE_EXAMPLE}, from {FIRST_DATE.year + 1} to "
    f"{LAST_DATE.year - 1}"
)


def _describe_cell(values: pd.Series[Any], row: int, noun: str) -> str:
    text = str(values.to_numpy()[row])[:100]
    shown = "an empty cell" if text.strip().lower() in ("", "nan", "nat", "none") else repr(text)
    problem = f"{shown} is no {noun}"
    if noun != "date" and DATE_PATTERN.match(text.strip()):
        problem += f" (columns under `dates` have dates, written {DATE_EXAMPLE})"
    return problem


def _texts(values: pd.Series[Any], empty: bool) -> np.ndarray:
    """Return texts without surrounding blanks.

    Floats of Parquet, which has them for whole numbers with empty cells, become whole numbers.
    """
    cells = values.astype(str).str.strip()
    gaps = values.isna() | cells.isin(EMPTY_CELLS)
    if not empty:
        CellError.check(gaps, lambda row: _describe_gap(values.isna().iloc[row], cells.iloc[row]))
    if values.dtype.kind == "f":
        # Beyond 2^53, different whole numbers may be the same float.
        is_fraction = ~gaps & ((values != values.round()) | (values.abs() > 2**53))
        allowed = "Allowed: text or whole numbers"
        CellError.check(is_fraction, lambda row: f"{values.iloc[row]} is no class; {allowed}")
        values = values.fillna(0).astype(np.int64)
    pairs = zip(values, gaps, strict=True)
    return np.array(["" if gap else str(value).strip() for value, gap in pairs], object)


def _describe_gap(is_null: bool, text: str) -> str:
    if is_null or not text:
        return "is empty. Allowed: a name"
    return f"{text!r} means an empty cell. Allowed: another name"


def _prose(values: pd.Series[Any], empty: bool) -> np.ndarray:
    """Return texts of words; a text without a word is an empty cell."""
    cells = values.astype(str).str.strip()
    gaps = values.isna() | cells.isin(EMPTY_CELLS) | ~cells.str.contains(WORD_PATTERN)
    if not empty:
        CellError.check(
            gaps, lambda row: f"{_describe_cell(values, row, 'text')}. Allowed: a word or more"
        )
    return np.where(gaps, "", cells).astype(object)


def _splits(values: pd.Series[Any], empty: bool) -> np.ndarray:
    """Return names of splits."""
    texts = _texts(values, empty)
    is_known = np.isin(texts, [*SPLIT_NAMES, ""])
    CellError.check(~is_known, lambda row: f"is {texts[row]!r}. Allowed: {', '.join(SPLIT_NAMES)}")
    return texts


STRING_TYPES = ("is_string", "is_large_string", "is_string_view")
NAME_TYPES = (
    *STRING_TYPES,
    "is_integer",
    "is_boolean",
    "is_floating",
    "is_dictionary",
)
NUMBER = ColumnType(_numbers, ("is_integer", "is_floating", "is_boolean"), "numbers", as_text=False)
TARGET = ColumnType(
    _targets,
    ("is_integer", "is_floating"),
    "numbers; true and false are two classes, of a column under `label`",
    as_text=False,
)
DATE = ColumnType(_dates, ("is_date", "is_timestamp", *STRING_TYPES), "dates")
PROSE = ColumnType(_prose, (*STRING_TYPES, "is_dictionary"), "text")
TEXT = ColumnType(_texts, NAME_TYPES, "text or whole numbers")
SPLIT_NAME = ColumnType(_splits, NAME_TYPES, "text or whole numbers")


def is_parquet(path: Path) -> bool:
    """Whether the name of a file is that of Parquet, and not of CSV."""
    return path.suffix.lower() in PARQUET_SUFFIXES


def column_names(path: Path, separator: str = ",", alternatives: str = "") -> list[str]:
    """Return the names of the columns of a table.

    A column without a name is left out: pandas writes row numbers in such a column, and a comma at
    the end of lines makes an empty one.

    Args:
        path: The table.
        separator: The separator of a CSV file.
        alternatives: What else would be allowed at ``path``, for the error.

    Raises:
        DataError: If the file does not exist or is no table, or if a name occurs twice.
    """
    allowed = f"a CSV file with a header, or Parquet{alternatives}"
    if not is_file(path):
        problem = "is a folder" if is_folder(path) else "the file does not exist"
        is_address = str(path).startswith(("http:/", "https:/"))
        advice = "download the file, and give its path" if is_address else ""
        raise DataError(f"{path}: {problem}", allowed, advice)
    with wrap_read_errors(path, "cannot be read as a table", f"write {allowed}"):
        header = _parquet_names(path) if is_parquet(path) else _csv_names(path, separator)
    for name in header:
        if header.count(name) > 1:
            raise DataError(f"{path}: column {name!r} occurs twice", "different names")
    return header


def _parquet_names(path: Path) -> list[str]:
    import pyarrow.parquet as pq

    return [name for name in pq.read_schema(path).names if not PANDAS_INDEX.fullmatch(name)]


FORMAT_BY_START = {
    b"\x1f\x8b": ("compressed by gzip", "unpack it"),
    b"PK\x03\x04": ("a ZIP archive, as Excel's workbooks are", "unpack it, or save it as CSV"),
    b"PAR1": ("Parquet", "give it the ending .parquet"),
    b"\xff\xfe": ("text in UTF-16", "save it as UTF-8"),
    b"\xfe\xff": ("text in UTF-16", "save it as UTF-8"),
}
"""What a file is that is no CSV in UTF-8, and what to do, by its first bytes."""


def _check_text(path: Path) -> None:
    """Raise a `DataError` for a file that is no text in UTF-8, or has a NUL character."""
    with path.open("rb") as file:
        start = file.read(1 << 20)
    for begin, (kind, advice) in FORMAT_BY_START.items():
        if start.startswith(begin):
            raise DataError(f"{path}: is {kind}", "a CSV file in UTF-8", advice)
    if b"\0" in start:
        line = start[: start.index(b"\0")].count(b"\n") + 1
        problem = f"{path}: line {line} has a NUL character"
        raise DataError(problem, "a CSV file in UTF-8", "save it again, without the character")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)  # Its end may be cut off.
    except UnicodeDecodeError as error:
        line = start[: error.start].count(b"\n") + 1
        problem = (
            f"{path}: line {line} has bytes that are no UTF-8, such as {start[error.start]:#x}"
        )
        raise DataError(problem, "a CSV file in UTF-8", "save it as UTF-8") from None


def _csv_names(path: Path, separator: str) -> list[str]:
    _check_text(path)
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file, delimiter=separator)
        header = next(rows, None)
        if header is None:
            raise ValueError("the file is empty")
        first = next(rows, header)
    if len(header) == 1:
        for mark in (mark for mark in SEPARATORS if mark in header[0]):
            problem = (
                f"{path}: {separator!r} separates no columns in the header {header[0][:100]!r}"
            )
            key = f'`separator: "{repr(mark)[1:-1]}"`'
            advice = f"write {key} for a data set `table`, or commas in the file"
            raise DataError(problem, advice=advice)
    if len(first) != len(header):
        raise ValueError(
            f"{len(header)} columns in the header, {len(first)} cells in the first row"
        )
    # Row numbers have no name, nor has what follows a comma at the end of lines.
    named = {0, len(header) - 1} if not first[-1] or header[-1] else {0}
    for i, name in enumerate(header):
        if not name.strip() and i not in named:
            problem = f"{path}: column {i + 1} has no name in the header"
            raise DataError(problem, advice="name it; `drop` leaves out what is no feature")
    return [name for name in header if name.strip()]


def index_columns(path: Path, existing: Collection[str]) -> set[str]:
    """Return the columns of a table in which pandas stored its index."""
    import pyarrow.parquet as pq

    unnamed = {name for name in existing if PANDAS_UNNAMED.fullmatch(name)}
    if not is_parquet(path):
        return unnamed
    text = (pq.read_schema(path).metadata or {}).get(b"pandas", b"{}")
    with wrap_read_errors(path, "has metadata `pandas` that cannot be read"):
        # An index of row numbers is described by an object, and is no column.
        columns = json.loads(text).get("index_columns", [])
        return unnamed | {name for name in columns if isinstance(name, str)}


def require_column(path: Path, existing: Iterable[str], key: str, column: str) -> None:
    """Raise a `DataError` unless a table has the column that a config key names."""
    existing = list(existing)
    if column not in existing:
        listed = ", ".join(existing[:20]) + (", ..." if len(existing) > 20 else "")
        simple = {printed_form(name.strip()).casefold(): name for name in existing}
        similar = simple.get(printed_form(column.strip()).casefold())
        similar = similar or similar_name(column, existing)
        shown, hint = repr(column), ""
        if similar:
            shown, suggestion = quoted_names([column, similar])
            hint = f" (did you mean {suggestion}?)"
        raise DataError(
            f"{path}: {key} is {shown}, but there is no such column{hint}; there are: {listed}"
        )


def read_pieces(
    path: Path,
    column_types: Mapping[str, ColumnType],
    gaps: Collection[str] = (),
    separator: str = ",",
    advice: str = "",
    content: BinaryIO | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Read some columns of a table, up to `PIECE_ROWS` rows at a time.

    Args:
        path: The table.
        column_types: Type of each column to read.
        gaps: Columns in which cells may be empty.
        separator: The separator of a CSV file.
        advice: Advice for cells that do not fit the type of their column.
        content: A table in memory, as Parquet; ``path`` is then its name in errors.

    Yields:
        A piece of each column, converted by its type.

    Raises:
        DataError: For a damaged file; after the last row, for all columns with cells that do not
            fit their type.
    """
    problems: dict[str, str] = {}
    first = 1
    remedy = "correct the file, or get it again"
    with wrap_read_errors(path, "cannot be read as a table", remedy):
        if content is not None or is_parquet(path):
            pieces = _parquet(content or path, column_types, problems)
        else:
            pieces = _csv(path, column_types, separator, problems)
        for piece in pieces:
            converted = {}
            for name in column_types.keys() - problems.keys():
                try:
                    converted[name] = column_types[name].convert(piece[name], name in gaps)
                except CellError as error:
                    row = first + error.row
                    problems[name] = f"column {name!r}, row {row}: {error.problem}"
            if len(piece) and not problems:
                yield converted
            first += len(piece)
    if problems:
        listed = [problems[name] for name in column_types if name in problems]
        unlisted = (
            [f"and {len(listed) - MAX_LISTED_COLUMNS} columns more"]
            if len(listed) > MAX_LISTED_COLUMNS
            else []
        )
        text = "; ".join([*listed[:MAX_LISTED_COLUMNS], *unlisted])
        raise DataError(f"{path}: {text}", advice=advice)


def _parquet(
    source: Path | BinaryIO, column_types: Mapping[str, ColumnType], problems: dict[str, str]
) -> Iterator[pd.DataFrame]:
    import pyarrow.parquet as pq
    from pyarrow import int8, timestamp, types

    with pq.ParquetFile(source) as file:
        for name, column_type in column_types.items():
            type_ = file.schema_arrow.field(name).type
            if not any(getattr(types, is_type)(type_) for is_type in column_type.arrow_types):
                shown = str(type_)[:100]
                problems[name] = (
                    f"column {name!r} is of type {shown}. Allowed: {column_type.allowed}"
                )
        valid = [name for name in column_types if name not in problems]
        for batch in file.iter_batches(PIECE_ROWS, columns=valid):
            # Booleans with gaps would become objects, and so would dates, which end in year 9999.
            cast = {
                name: batch[name].cast(int8())
                if column_types[name] is NUMBER and types.is_boolean(batch[name].type)
                else batch[name].cast(timestamp("ms"))
                if column_types[name] is DATE and types.is_date(batch[name].type)
                else batch[name]
                for name in valid
            }
            yield pd.DataFrame({name: values.to_pandas() for name, values in cast.items()})


def _csv(
    path: Path, column_types: Mapping[str, ColumnType], separator: str, problems: dict[str, str]
) -> Iterator[pd.DataFrame]:
    is_boolean_by_name: dict[str, bool] = {}
    with pd.read_csv(
        path,
        sep=separator,
        dtype={name: str for name, column_type in column_types.items() if column_type.as_text},
        keep_default_na=False,  # So that an error can quote the cell.
        chunksize=PIECE_ROWS,
        low_memory=False,
        encoding="utf-8-sig",
    ) as chunks:
        for chunk in chunks:
            for name in column_types.keys() - problems.keys():
                # Within one piece, such a mixture makes a column of texts, which is refused too.
                is_boolean = chunk[name].dtype == bool
                if is_boolean_by_name.setdefault(name, is_boolean) != is_boolean:
                    row = chunk.index[0] + 1
                    mixed = "numbers and True or False"
                    problems[name] = (
                        f"column {name!r}: {mixed}, from row {row} on. Allowed: one of both"
                    )
            # All columns were read: with `usecols`, pandas would ignore surplus cells.
            yield chunk[list(column_types)]


def place_of(paths: Iterable[Path], column: str, value: str, separator: str = ",") -> str:
    """Return where a column of texts first has a value, such as ``row 3``; used for errors.

    Args:
        paths: The table, or tables with this column.
        column: The column.
        value: The text.
        separator: The separator of a CSV file.
    """
    for path in paths:
        first = 1
        for piece in read_pieces(path, {column: TEXT}, (column,), separator):
            rows = np.flatnonzero(piece[column] == value)
            if len(rows):
                return f"{path.name}, column {column!r}, row {first + rows[0]}"
            first += len(piece[column])
    return f"column {column!r}"


def sort_texts(texts: Iterable[str]) -> list[str]:
    """Return the different texts in order: whole numbers by value, others by spelling."""
    different = set(texts)
    if all(text.removeprefix("-").isdecimal() and len(text) < 4000 for text in different):
        return sorted(different, key=lambda text: (int(text), text))
    return sorted(different)


def number_texts(texts: Iterable[str], order: Sequence[str]) -> np.ndarray:
    """Return the index of each text in ``order``, int64."""
    number = {text: i for i, text in enumerate(order)}
    return np.array([number[text] for text in texts], np.int64)


def features(
    piece: Mapping[str, np.ndarray], names: Sequence[str], order: Mapping[str, Sequence[str]]
) -> np.ndarray:
    """Return the features of a piece of rows, float64 ``[rows, features]``.

    Args:
        piece: The columns.
        names: Names of the columns of features, in their order.
        order: Values of each categorical column, which becomes a feature for each.
    """
    blocks = [
        np.eye(len(order[name]))[number_texts(piece[name], order[name])]
        if name in order
        else piece[name][:, None]
        for name in names
    ]
    return np.concatenate(blocks, axis=1)


def check_classes(
    path: Path,
    key: str,
    classes: Sequence[str],
    samples: int,
    place: Callable[[str], str],
    target: str = "",
) -> None:
    """Raise a `DataError` for labels that cannot be classes.

    Args:
        path: The file.
        key: What has the labels, for errors.
        classes: The different labels.
        samples: Number of samples.
        place: Returns where a label is first, see `check_missing_codes`.
        target: Advice for labels that may be numbers to predict.
    """
    if not samples:
        raise DataError(f"{path}: has no rows", "at least one row below the header")
    if len(classes) < 2:
        raise DataError(f"{path}: {key} has one value only, {classes[0]!r}", "two classes or more")
    check_spellings(path, key, classes)
    check_missing_codes(path, key, classes, place)
    are_numbers = all(NUMBER_TEXT.fullmatch(name) for name in classes)
    _check_repeated(path, key, classes, samples, target if are_numbers else "")


def check_targets(path: Path, key: str, targets: Collection[float]) -> None:
    """Raise a `DataError` for targets of which nothing can be learnt, or without rows."""
    if not targets:
        raise DataError(f"{path}: has no rows", "at least one row below the header")
    if len(targets) < 2:
        raise DataError(f"{path}: {key} has one value only, {min(targets):g}", "different numbers")


def check_categories(path: Path, name: str, values: Sequence[str], samples: int) -> None:
    """Raise a `DataError` for a categorical column with too many values."""
    if len(values) > MAX_CATEGORIES:
        problem = f"{path}: column {name!r} has {len(values)} different values"
        raise DataError(problem, f"up to {MAX_CATEGORIES}", "name it under `drop`")
    check_spellings(path, f"column {name!r}", values)
    _check_repeated(path, f"column {name!r}", values, samples)


def _check_repeated(
    path: Path, key: str, values: Sequence[str], samples: int, advice: str = ""
) -> None:
    """Raise a `DataError` for a column with different values in nearly all rows."""
    if 2 * len(values) > samples:
        problem = f"{path}: {key} has {len(values)} different values in {samples} rows"
        raise DataError(problem, "classes of two samples or more, on average", advice)


def csv_rows(stream: BinaryIO, encoding: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file with their numbers from 1.

    Raises:
        DataError: If the stream is no CSV file; it names the stream.
    """
    rows = csv.reader(io.TextIOWrapper(stream, encoding, newline=""), strict=True)
    with wrap_read_errors(stream_name(stream), "is no CSV file"):
        yield from enumerate(rows, 1)
