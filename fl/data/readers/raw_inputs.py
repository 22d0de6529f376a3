"""Raw inputs of a trained model: tables, texts, images and arrays, made into what a data set has.

A data set says in an attribute ``input_reader`` how its files become inputs (`TableReader`,
`TextReader`, `ImageReader`). `Input` adds what a run's training samples decided: normalisation, the
means that stand for empty cells, and the vocabulary. All of it is plain data, which is stored with
a model, so that no file of the data set is needed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from fl.base.errors import DataError, meant_name, wrap_read_errors
from fl.base.files import is_folder, list_files_below
from fl.base.folders import path_of
from fl.data.readers import image_lists, tables
from fl.data.readers.image_files import (
    GREY_MODES,
    UNREADABLE,
    decode_own_image,
    read_image_header,
)
from fl.data.readers.tables import DATE, NUMBER, PROSE, TEXT, CellError, ColumnType
from fl.data.readers.texts import FileTokenizer, RowText, encode_words, first_words

MAX_LISTED = 20
"""Largest number of columns or values that a message lists."""
IN_MEMORY = Path("the table")
"""Name of a table in memory, for errors."""
CELL_ADVICE = "fill these cells, or leave these rows out"


ColumnKind = Literal["number", "date", "category"]


@dataclass(frozen=True)
class Column:
    """A column of features.

    Attributes:
        name: Its name.
        kind: What its cells are.
        values: The categories of training, in the order of features.
    """

    name: str
    kind: ColumnKind
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableReader:
    """Reader of rows of features: a file, or a table in memory.

    Attributes:
        columns: The columns, in the order of features.
        others: Columns that may be there too, such as that of labels.
        gaps: Columns in which cells may be empty.
        separator: The separator of a CSV file.
    """

    columns: tuple[Column, ...]
    others: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    separator: str = ","

    def read(self, raw: Any) -> np.ndarray:
        """Return the features of each row, float64 ``[rows, features]``; an empty one is NaN."""
        types = {"number": NUMBER, "date": DATE, "category": TEXT}
        names = [column.name for column in self.columns]
        order = {column.name: column.values for column in self.columns if column.values}
        kinds = {column.name: types[column.kind] for column in self.columns}
        blocks = []
        first = 1
        for piece in _pieces(raw, kinds, self.others, self.gaps, self.separator):
            for name, values in order.items():
                is_wrong = ~np.isin(piece[name], values)
                if is_wrong.any():
                    row = int(is_wrong.argmax())
                    raise _unknown_value(name, first + row, str(piece[name][row]), values)
            blocks.append(tables.features(piece, names, order))
            first += len(blocks[-1])
        return np.concatenate(blocks) if blocks else np.zeros((0, 0))


@dataclass(frozen=True)
class TextReader:
    """Reader of texts: a list of them, or columns of a table.

    Attributes:
        length: Number of tokens of a text.
        unknown: The token of words without one of their own, which fills short texts up too.
        words: The words with a token of their own, in the order of their tokens.
        tokenizer: Path of a tokenizer's file, in place of words.
        columns: Columns of texts of a table; with none, texts are a list.
        others: Columns that may be there too, such as that of labels.
        is_joined: Whether the texts of a row are joined by a blank, and not kept apart.
        may_be_empty: Whether a text may have no word.
        separator: The separator of a CSV file.
    """

    length: int
    unknown: int = 0
    words: tuple[str, ...] = ()
    tokenizer: str | None = None
    columns: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    is_joined: bool = True
    may_be_empty: bool = False
    separator: str = ","

    def read(self, raw: Any) -> np.ndarray:
        """Return the tokens of each text, int32 ``[texts, length]``."""
        texts = self._texts(raw)
        if self.tokenizer is not None:
            return FileTokenizer.open(self.tokenizer, self.length).encode(texts)
        token_by_word = {word: token for token, word in enumerate(self.words)}
        rows = [
            encode_words(first_words(text, self.length), token_by_word, self.length, self.unknown)
            for text in texts
        ]
        return np.array(rows, np.int32).reshape(-1, self.length)

    def _texts(self, raw: Any) -> list[RowText]:
        if isinstance(raw, Path | pd.DataFrame | Mapping) and self.columns:
            kinds = dict.fromkeys(self.columns, PROSE)
            gaps = self.columns if self.may_be_empty else ()
            rows = [
                row
                for piece in _pieces(raw, kinds, self.others, gaps, self.separator)
                for row in zip(*(piece[name] for name in self.columns), strict=True)
            ]
            return [" ".join(row) for row in rows] if self.is_joined else [*rows]
        if len(self.columns) > 1:
            allowed = f"a DataFrame with the columns {_listed(self.columns)}"
            raise DataError(f"the texts: are a {type(raw).__name__}", allowed)
        if isinstance(raw, str) or not isinstance(raw, Sequence | np.ndarray | pd.Series):
            advice = "[text]" if isinstance(raw, str) else ""
            raise DataError(f"the texts: are a {type(raw).__name__}", "a list of texts", advice)
        for number, text in enumerate(raw):
            if not isinstance(text, str):
                problem = f"text {number}: is {text!r:.100}, a {type(text).__name__}"
                raise DataError(problem, "a text", "leave it out")
        try:
            return [*PROSE.convert(pd.Series([*raw], dtype=object), self.may_be_empty)]
        except CellError as error:
            raise DataError(f"text {error.row}: {error.problem}") from None


@dataclass(frozen=True)
class ImageReader:
    """Reader of images: files, their bytes, or images of Pillow.

    Attributes:
        is_resized: Whether images of another size are resized, as in training.
    """

    is_resized: bool

    def read(self, raw: Any, shape: Sequence[int]) -> np.ndarray:
        """Return the pixels of images, uint8 ``[images, *shape]``.

        Args:
            raw: A list of images, or the path of one or of a folder of them.
            shape: Colours, height, width.
        """
        return np.stack([self._read_one(item, shape) for item in list_images(raw)])

    def _read_one(self, item: Any, shape: Sequence[int]) -> np.ndarray:
        colours, height, width = shape
        if hasattr(item, "getbands"):
            name, content = "a picture", _content(item)
        elif isinstance(item, bytes):
            name, content = "a picture", item
        else:
            name = str(item)
            with wrap_read_errors(name, *UNREADABLE):
                content = path_of(name).read_bytes()
        mode, size = read_image_header(content, name)
        if colours == 1 and mode not in GREY_MODES:
            advice = "image.convert('L') of Pillow, if its colours mean nothing"
            raise DataError(f"{name}: has colours", "grey images, as in training", advice)
        if size != (height, width) and not self.is_resized:
            problem = f"{name}: has {size[0]} x {size[1]} pixels"
            advice = f"image.resize(({width}, {height})) of Pillow"
            raise DataError(problem, f"{height} x {width}, as in training", advice)
        return decode_own_image(content, (height, width), "L" if colours == 1 else "RGB", name)


Reader = TableReader | TextReader | ImageReader


@dataclass(frozen=True)
class Input:
    """An input of a model: from what a user has to an array as the data set's.

    Attributes:
        shape: Shape of one input.
        dtype: NumPy's name of the type of the data set's array.
        normalisation: ``scale``, ``mean`` and ``sd``; None for tokens.
        tokens: Number of different tokens; 0 for numbers, or if it is not known.
        fills: The number that stands for an empty cell of each feature.
        table: Reader of rows.
        text: Reader of texts.
        images: Reader of images.
    """

    shape: tuple[int, ...]
    dtype: str
    normalisation: dict[str, Any] | None
    tokens: int = 0
    fills: tuple[float, ...] = ()
    table: TableReader | None = None
    text: TextReader | None = None
    images: ImageReader | None = None

    @property
    def allowed(self) -> str:
        """What a user gives, in words."""
        if self.table is not None:
            return f"a table with the columns {_listed([c.name for c in self.table.columns])}"
        lengths = ", ".join(map(str, self.shape))
        kind = "numbers"
        if self.normalisation is None:
            kind = f"tokens from 0 to {self.tokens - 1}" if self.tokens else "tokens from 0 on"
        elif self.dtype == "uint8":
            kind = f"whole numbers from 0 to {self._greatest}"
        text = f"{kind} [samples, {lengths}]"
        other = "a list of texts, or " * (self.text is not None)
        return other + "image files, or " * (self.images is not None) + text

    @property
    def _greatest(self) -> int:
        """The greatest of whole numbers: what the data set scales to 1, else that of a byte."""
        scale = float(self.normalisation["scale"]) if self.normalisation else 1.0
        return round(1 / scale) if 1 / 255 < scale < 1 else 255

    def read(self, raw: Any, name: str) -> np.ndarray:
        """Return an array as the data set's, ``[samples, *shape]``.

        Args:
            raw: A table, texts, images or numbers.
            name: Name of the input, for errors.

        Raises:
            DataError: If it is not of the kind, shape or columns of training.
        """
        if self.table is not None:
            x = self.table.read(raw)
        elif self.text is not None and not _has_numbers(raw):
            x = self.text.read(raw)
        elif self.images is not None and not _has_numbers(raw):
            x = self.images.read(raw, self.shape)
        else:
            x = self._numbers(raw, name)
        if not len(x):
            raise DataError(f"{name}: has no samples", "at least one")
        return np.where(np.isnan(x), self.fills, x) if self.fills else x

    def _numbers(self, raw: Any, name: str) -> np.ndarray:
        plain = raw.detach().cpu() if hasattr(raw, "detach") else raw
        try:
            x = np.asarray(plain)
        except (TypeError, ValueError) as error:
            reason = str(error).split(". ")[0]
            raise DataError(f"{name}: is no array ({reason})", self.allowed) from None
        said = f"{name}: is {x.dtype} {list(x.shape)}"
        if x.dtype.kind not in "biuf":
            raise DataError(said, self.allowed)
        if x.shape[1:] != self.shape:
            raise DataError(said, self.allowed, self._shape_advice(x))
        if self.normalisation is None or self.dtype == "uint8":
            limit = self.tokens if self.normalisation is None else self._greatest + 1
            if x.dtype.kind not in "iu":
                greatest = 0 if self.normalisation is None else self._greatest
                raise DataError(said, self.allowed, _whole_advice(x, greatest))
            if x.size and (x.min() < 0 or (limit and x.max() >= limit)):
                problem = f"{name}: has numbers from {x.min()} to {x.max()}"
                raise DataError(problem, self.allowed)
        is_wrong = ~np.isfinite(x.reshape(len(x), -1)).all(axis=1)
        if is_wrong.any():
            problem = f"{name}: sample {int(is_wrong.argmax())} has numbers that are not finite"
            raise DataError(problem, advice="leave it out")
        return x.astype(self.dtype)

    def _shape_advice(self, x: np.ndarray) -> str:
        """Return how an array of another shape may become one of samples, or ""."""
        shape = self.shape
        last = (*shape[1:], shape[0])
        if x.shape == shape:
            return "x[None], for one sample"
        if len(shape) == 3 and x.shape[1:] == last:
            return "x.transpose(0, 3, 1, 2), as channels come first"
        if x.shape[1:] == shape[1:] and shape[0] == 1:
            return "x[:, None], as channels come first"
        if x.ndim > 1 and np.prod(x.shape[1:]) == np.prod(shape):
            return f"x.reshape(len(x), {', '.join(map(str, shape))}), if values are in that order"
        return ""


def _whole_advice(x: np.ndarray, greatest: int) -> str:
    """Return how floats may become whole numbers up to the greatest one (0: tokens), or ""."""
    if x.size and not (x % 1).any():
        return "x.astype(int)"
    is_share = greatest and x.size and 0 <= x.min() <= x.max() <= 1
    return f"({greatest} * x).round().astype('uint8')" if is_share else ""


def list_images(raw: Any) -> list[Any]:
    """Return images: those of a list, of a folder by their paths, or a single one.

    Raises:
        DataError: If there are none.
    """
    if isinstance(raw, str | Path) and is_folder(path_of(str(raw))):
        images = [
            path for path in list_files_below(path_of(str(raw))) if image_lists.is_image(path)
        ]
    else:
        is_single = isinstance(raw, str | bytes | Path) or hasattr(raw, "getbands")
        images = [raw] if is_single else [*raw]
    if not images:
        raise DataError(f"{raw}: has no images", "image files, or a folder of them")
    return images


def _content(picture: Any) -> bytes:
    """Return an image of Pillow as the bytes of a file, of which nothing is lost."""
    content = io.BytesIO()
    with wrap_read_errors("a picture", "cannot be written as PNG", "give the path of its file"):
        picture.save(content, "PNG", exif=picture.getexif())
    return content.getvalue()


def _has_numbers(raw: Any) -> bool:
    """Whether a value is an array or tensor of numbers, or a list of them."""
    first = raw[0] if isinstance(raw, list | tuple) and raw else raw
    dtype = getattr(first, "dtype", None)
    return dtype is not None and str(dtype).removeprefix("torch.")[:3] in NUMBER_TYPES


NUMBER_TYPES = ("int", "uin", "flo", "bfl", "boo")
"""First letters of the types of numbers, of NumPy and PyTorch."""


def _pieces(
    raw: Any,
    kinds: Mapping[str, ColumnType],
    others: Sequence[str],
    gaps: Sequence[str],
    separator: str,
) -> Iterator[dict[str, np.ndarray]]:
    """Yield pieces of columns of a file, or of a table in memory."""
    if isinstance(raw, str | os.PathLike):
        path, content = path_of(str(raw)), None
        existing = tables.column_names(path, separator)
        existing = [name for name in existing if name not in tables.index_columns(path, existing)]
    else:
        frame = _frame(raw, kinds)
        path, existing = IN_MEMORY, [*frame.columns]
        _check_columns(path, [*kinds], existing, others)
        content = io.BytesIO()
        with wrap_read_errors(path, "cannot be written as Parquet", "give each column one type"):
            frame[[*kinds]].to_parquet(content, index=False)
    _check_columns(path, [*kinds], existing, others)
    yield from tables.read_pieces(path, kinds, gaps, separator, CELL_ADVICE, content)


def _frame(raw: Any, kinds: Mapping[str, ColumnType]) -> pd.DataFrame:
    """Return a table in memory whose names of columns are texts."""
    allowed = f"a DataFrame with the columns {_listed([*kinds])}, or the path of a file"
    if hasattr(raw, "to_pandas"):
        raw = raw.to_pandas()
    if isinstance(raw, Mapping):
        try:
            raw = pd.DataFrame(raw)
        except ValueError as error:
            advice = "a list for each column, such as {'age': [31]}"
            raise DataError(f"{IN_MEMORY}: has no rows ({error})", allowed, advice) from None
    if not isinstance(raw, pd.DataFrame):
        advice = ""
        if isinstance(raw, pd.Series):
            advice = "frame.iloc[[0]] for one row"
        elif hasattr(raw, "shape") or isinstance(raw, list | tuple):
            advice = "pd.DataFrame(x, columns=[...]) with the names of the columns"
        raise DataError(f"{IN_MEMORY}: is a {type(raw).__name__}", allowed, advice)
    return raw.rename(columns=str)


def _check_columns(
    path: Path, needed: Sequence[str], existing: Sequence[str], others: Sequence[str]
) -> None:
    """Raise a `DataError` for columns that are missing, or that training did not have."""
    unknown = [name for name in existing if name not in needed and name not in others]
    missing = [name for name in needed if name not in existing]
    allowed = f"the columns of training: {_listed(needed)}"
    if missing:
        similar = {name: meant_name(name, unknown) for name in missing}
        texts = [f"{n!r} (is it {near!r}?)" if near else repr(n) for n, near in similar.items()]
        shown = ", ".join(texts[:MAX_LISTED]) + ", ..." * (len(texts) > MAX_LISTED)
        renamed = {near: name for name, near in similar.items() if near}
        advice = f"frame.rename(columns={renamed!r})" if renamed else ""
        raise DataError(f"{path}: lacks {shown}", allowed, advice)
    if unknown:
        problem = f"{path}: has {_listed(unknown)}, which training did not have"
        raise DataError(problem, allowed, f"frame.drop(columns={unknown[:MAX_LISTED]!r})")


def _unknown_value(name: str, row: int, value: str, values: Sequence[str]) -> DataError:
    problem = f"column {name!r}, row {row}: {value!r} is in no row of training"
    near = meant_name(value, values)
    return DataError(problem, _listed(values), f"{near!r}" if near else "")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:MAX_LISTED])) + ", ..." * (len(names) > MAX_LISTED)
