"""Safe reading of published pickles: no function that a pickle names is called.

A pickle is a program: the plain ``pickle.load`` runs any code of its author. Here Python's
unpickler builds text, numbers, lists, tuples and dictionaries. The few names that numpy arrays need
(`ALLOWED_NAMES`) are classes of this module, which check their arguments; every other name is
refused. So no code that the author wrote or chose is run. Pickles that exhaust the memory are not
prevented: published files have checksums.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fl.base.errors import DataError
from fl.data.readers.archives import stream_name

MAX_DEPTH = 8
"""Largest nesting of containers."""
ARRAY_TYPES = re.compile(r"[iu][1248]|f[248]|[SU][1-9][0-9]{0,5}|O[48]")
"""Types of arrays that are accepted; O means Python objects."""
PLAIN_TYPES = (bytes, str, int, float, bool, type(None))


class RefusedError(Exception):
    """A pickle asks for something that is no plain data."""


def load_pickle(stream: Path | BinaryIO) -> Any:
    """Read plain data from a pickle: arrays, numbers, text, lists, tuples, dictionaries.

    A table of pandas becomes a dictionary of its columns, arrays or lists. Text of Python 2 becomes
    bytes; arrays of objects become lists, with two dimensions lists of rows.

    Raises:
        DataError: If the pickle is damaged or asks for anything else; it names the file and the
            request.
    """
    title = stream_name(stream)
    try:
        content = stream.read_bytes() if isinstance(stream, Path) else stream.read()
        for instruction, argument, _ in pickletools.genops(content):
            # Python would allocate memory for as many values as the number says.
            if instruction.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > len(content):
                raise ValueError(f"it numbers a value {argument:,}")
        return _resolve(_Unpickler(io.BytesIO(content), encoding="bytes").load())
    except DataError:
        raise  # The archive of the pickle is damaged.
    except RefusedError as error:
        raise DataError(
            f"{title}: asks for {error}; no code of it was run",
            "in a pickle numpy arrays, numbers, text and containers of them",
            "get the file from its publisher",
        ) from None
    except Exception as error:  # Damaged files raise any exception.
        raise DataError(
            f"{title}: is no complete pickle ({type(error).__name__}: {error})",
            advice="delete the file, or the archive that contains it, to fetch it again",
        ) from error


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full not in ALLOWED_NAMES:
            raise RefusedError(full[:200])
        return ALLOWED_NAMES[full]


class _StandIn:
    """Replacement of a class that a pickle names; it has no value until it gets a state."""

    value: Any = None

    def __init__(self, *arguments: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        raise RefusedError(f"a state of {type(self).__name__}")


class _ArrayType(_StandIn):
    """Type of the items of an array; its state is the byte order."""

    def __init__(self, code: Any, *options: Any) -> None:
        self.code, self.order = _text(code), "|"
        if not ARRAY_TYPES.fullmatch(self.code):
            raise RefusedError(f"an array of type {self.code[:20]!r}")

    def __setstate__(self, state: Any) -> None:
        _, order, *inner = state
        if inner[:3] != [None] * 3:
            raise RefusedError("an array whose items have parts")
        self.order = _text(order)


class _Array(_StandIn):
    """An array; its state is the shape and the content."""

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, by_columns, content = state
        self.value = _build_array(kind, shape, bool(by_columns), content)


class _Scalar(_StandIn):
    def __init__(self, kind: Any, content: Any) -> None:
        self.value = _build_array(kind, (1,), False, content)[0]


class _Encoded(_StandIn):
    """Bytes as Python 3 writes them for Python 2; a call returns the bytes."""

    def __new__(cls, text: str = "", encoding: str = "latin1") -> Any:
        return text.encode("latin-1")


class _Buffer(_StandIn):
    """An array of protocol 5, from its bytes."""

    def __init__(self, content: Any, kind: Any, shape: Any, order: Any) -> None:
        self.value = _build_array(kind, shape, order == "F", content)


class _Slice(_StandIn):
    """Numbers of the columns of a block."""

    def __init__(self, start: Any, stop: Any, step: Any) -> None:
        self.value = np.arange(start, stop, step)


class _Block(_StandIn):
    """Columns of one type in a table of pandas."""

    def __init__(self, rows: Any, places: Any, dimensions: Any) -> None:
        self.columns = dict(zip(_resolve(places).tolist(), _resolve(rows), strict=True))


class _Index(_StandIn):
    """Names of columns; an index of whole numbers in order has no state and no value."""

    def __init__(self, kind: Any, state: Any) -> None:
        self.value = _resolve(state["data"]) if "data" in state else None


class _Blocks(_StandIn):
    """Blocks and axes of a table."""

    def __init__(self, blocks: Any, axes: Any) -> None:
        columns = {place: column for block in blocks for place, column in block.columns.items()}
        self.value = {name: columns[place] for place, name in enumerate(_resolve(axes[0]))}


class _Frame(_StandIn):
    """A table of pandas; its value is a dictionary of columns."""

    def __setstate__(self, state: Any) -> None:
        self.value = _resolve(state["_mgr"])


def _build_array(kind: Any, shape: Any, by_columns: bool, content: Any) -> Any:
    """Return an array of exactly ``content``, or a list if it holds objects."""
    if not isinstance(kind, _ArrayType) or not all(
        type(size) is int and size >= 0 for size in shape
    ):
        raise ValueError("an array has no type, or no shape")
    count = math.prod(shape)
    if kind.code[0] == "O":
        # numpy would interpret bytes as addresses in memory.
        if type(content) is not list or len(shape) > 2 or len(content) != count:
            raise RefusedError(f"an array of objects {[*shape]} that is no list of them")
        if len(shape) < 2:
            return content
        rows, width = shape
        if by_columns:
            return [content[row::rows] for row in range(rows)]
        return [content[row * width : (row + 1) * width] for row in range(rows)]
    dtype = np.dtype(kind.order + kind.code)
    if type(content) not in (bytes, bytearray) or len(content) != count * dtype.itemsize:
        raise ValueError(f"an array of {[*shape]} {dtype} has other bytes")
    if dtype.kind == "U":
        content.decode("utf-32-be" if dtype.byteorder == ">" else "utf-32-le")
    flat = np.frombuffer(content, dtype) if count else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if by_columns else "C")


def _text(value: Any) -> str:
    """Return text that Python 2 wrote as bytes, or Python 3 as text."""
    return value.decode("ascii") if type(value) is bytes else str(value)


def _resolve(value: Any, depth: int = 0) -> Any:
    """Return the value with arrays in place of their replacements."""
    if depth > MAX_DEPTH:
        raise RefusedError(f"values deeper than {MAX_DEPTH} in each other")
    kind = type(value)
    if kind in PLAIN_TYPES or kind is np.ndarray or isinstance(value, np.generic):
        return value
    if kind in (list, tuple):
        return kind(_resolve(item, depth + 1) for item in value)
    if kind is dict and all(type(key) in PLAIN_TYPES for key in value):
        return {key: _resolve(item, depth + 1) for key, item in value.items()}
    if isinstance(value, _StandIn) and value.value is not None:
        return _resolve(value.value, depth + 1)
    raise RefusedError(f"a value that is no data ({kind.__name__.strip('_')})")


ALLOWED_NAMES: dict[str, type] = {
    "numpy.ndarray": _StandIn,
    "numpy.dtype": _ArrayType,
    "_codecs.encode": _Encoded,
    # Python 3 writes empty bytes for Python 2 in these two ways.
    "__builtin__.bytes": _Encoded,
    "builtins.bytes": _Encoded,
}
ALLOWED_NAMES |= {
    "pandas.core.frame.DataFrame": _Frame,
    "pandas.core.internals.managers.BlockManager": _Blocks,
    "pandas._libs.internals._unpickle_block": _Block,
    "pandas.core.indexes.base._new_Index": _Index,
    "pandas.core.indexes.base.Index": _StandIn,
    "pandas.core.indexes.range.RangeIndex": _StandIn,
    # pandas 3 has new names for the same classes.
    "pandas.DataFrame": _Frame,
    "pandas.Index": _StandIn,
    "pandas.RangeIndex": _StandIn,
    "builtins.slice": _Slice,
}
for core in ("core", "_core"):  # numpy 2 has a new name for the same modules.
    ALLOWED_NAMES[f"numpy.{core}.multiarray._reconstruct"] = _Array
    ALLOWED_NAMES[f"numpy.{core}.multiarray.scalar"] = _Scalar
    ALLOWED_NAMES[f"numpy.{core}.numeric._frombuffer"] = _Buffer
