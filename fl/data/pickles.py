"""Pickles of others, read without calling anything that they name.

A pickle is a program: the plain ``pickle.load`` runs whatever its author wrote. Here Python's own
unpickler builds text, numbers, lists, tuples and dictionaries. The few names that numpy's arrays
need (`KNOWN`) stand for functions of this file, which check what they are given; every other name
is refused, as is every instruction that could call something. So no code of a pickle's author, and
none that the author chose, is ever run. A pickle that is made to use up memory is not guarded
against beyond `BYTES`: published files are held to a checksum.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fl.base.errors import DataError
from fl.data.archives import name_of

BYTES = 1 << 32
"""How long a pickle may be; the largest that is published has 0.3 GB."""
DEPTH = 16
"""How deep containers may lie in containers."""
CALLS = {
    *("PERSID", "BINPERSID", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"),
    *("NEXT_BUFFER", "READONLY_BUFFER"),
}
"""Instructions that make objects of classes, or ask the reader for something, by the names of the
standard library's pickletools. Data does without them.
"""
NUMBERS = re.compile(r"[iu][1248]|f[248]|[SU][1-9][0-9]{0,5}|O[48]")
"""The types of arrays that are taken; O stands for Python's objects."""
LEAVES = (bytes, str, int, float, bool, type(None))


class Refused(Exception):
    """A pickle asks for something that is no plain data."""


def load(stream: Path | BinaryIO) -> Any:
    """What is pickled in a file or a stream: arrays, numbers, text, lists, tuples, dictionaries.

    Text of Python 2 and bytearrays become bytes; arrays of objects become lists.

    Raises:
        DataError: If the pickle is damaged or asks for anything else; it names the file and what is
            asked for.
    """
    title = name_of(stream)
    try:
        content = stream.read_bytes() if isinstance(stream, Path) else stream.read(BYTES + 1)
        if len(content) > BYTES:
            raise Refused(f"more than {BYTES:,} bytes")
        _check_instructions(content)
        return _plain(_Unpickler(io.BytesIO(content), encoding="bytes").load(), {}, 0)
    except DataError:
        raise  # The archive that it is in is damaged.
    except Refused as error:
        raise DataError(
            f"{title}: asks for {error}; allowed in a pickle: numpy arrays, numbers, text and"
            " containers of them; nothing of it was run. Get the file from its publisher"
        ) from None
    except Exception as error:  # What is damaged can be wrong in any way.
        raise DataError(
            f"{title}: is no complete pickle ({type(error).__name__}: {error}); delete the file, or"
            " the archive that it is in, to fetch it again"
        ) from error


def _check_instructions(content: bytes) -> None:
    """Refuse the instructions that data does without, and a memory of more places than there are
    bytes: Python would make room for all of them.
    """
    for instruction, argument, _ in pickletools.genops(content):
        if instruction.name in CALLS:
            raise Refused(f"the instruction {instruction.name}")
        if instruction.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > len(content):
            raise ValueError(f"it numbers a value {argument:,}")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full not in KNOWN:
            raise Refused(full[:200])
        return KNOWN[full]


class _Name:
    """What a name in a pickle stands for."""

    def __init__(self, name: str, make: Callable[..., Any] | None = None) -> None:
        self._name, self._make = name, make

    def __call__(self, *arguments: Any) -> Any:
        if self._make is None:
            raise Refused(f"a call of {self._name}")
        return self._make(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise Refused(f"a state of {self._name}")


class _Kind:
    """The type of an array's items, which gets its byte order as a state."""

    def __init__(self, code: Any, *rest: Any) -> None:
        self.code, self.order = _text(code), "|"
        if not NUMBERS.fullmatch(self.code):
            raise Refused(f"an array of type {self.code[:20]!r}")

    def __setstate__(self, state: Any) -> None:
        _, order, *inner = state
        if inner[:3] != [None] * 3:
            raise Refused("an array whose items have parts")
        self.order = _text(order)


class _Array:
    """An array, which gets its shape and content as a state; ``value`` is None until then."""

    value: Any = None

    def __init__(self, kind: Any = None, *rest: Any) -> None:
        if kind is not NDARRAY:
            raise Refused("an array of another class than numpy.ndarray")

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, by_columns, content = state
        self.value = _array(kind, shape, bool(by_columns), content)


def _array(kind: Any, shape: Any, by_columns: bool, content: Any) -> Any:
    """An array of exactly ``content``; a list where it holds objects."""
    if not isinstance(kind, _Kind) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("an array has no type, or no shape")
    count = math.prod(shape)
    if kind.code[0] == "O":
        # Of bytes, numpy would make addresses in memory.
        if type(content) is not list or len(shape) != 1 or len(content) != count:
            raise Refused(f"an array of objects {[*shape]} that is no list of them")
        return content
    dtype = np.dtype(kind.order + kind.code)
    if type(content) not in (bytes, bytearray) or len(content) != count * dtype.itemsize:
        raise ValueError(f"an array of {[*shape]} {dtype} has other bytes")
    if dtype.kind == "U":
        content.decode("utf-32-be" if dtype.byteorder == ">" else "utf-32-le")
    flat = np.frombuffer(content, dtype) if count else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if by_columns else "C")


def _with_content(content: Any, kind: Any, shape: Any, order: Any) -> _Array:
    array = _Array(NDARRAY)
    array.value = _array(kind, shape, order == "F", content)
    return array


def _scalar(kind: Any, content: Any) -> _Array:
    array = _Array(NDARRAY)
    array.value = _array(kind, (1,), False, content)[0]
    return array


def _encoded(text: Any, encoding: Any) -> bytes:
    """How Python 3 writes bytes for Python 2."""
    if type(text) is not str or encoding != "latin1":
        raise Refused("an encoding other than latin1")
    return text.encode("latin-1")


def _text(value: Any) -> str:
    """Text that Python 2 wrote as bytes, or Python 3 as text."""
    return value.decode("ascii") if type(value) is bytes else str(value)


def _plain(value: Any, made: dict[int, Any], depth: int) -> Any:
    """The value with arrays in place of what stands for them; what is in two places stays one."""
    if depth > DEPTH:
        raise Refused(f"values deeper than {DEPTH} in each other")
    kind = type(value)
    if kind is str:
        value.encode()  # Half a character is damage: nobody could print it.
    if kind in LEAVES:
        return value
    if kind is bytearray:
        return bytes(value)
    if id(value) in made:
        return made[id(value)]
    if kind is _Array and value.value is not None:
        result = value.value
        if type(result) is list:
            result = _plain(result, made, depth + 1)
    elif kind in (list, tuple):
        result = kind(_plain(item, made, depth + 1) for item in value)
    elif kind is dict:
        if not all(type(key) in LEAVES for key in value):
            raise Refused("a key that is neither text nor a number")
        result = {key: _plain(item, made, depth + 1) for key, item in value.items()}
    else:
        raise Refused(f"a value that is no data ({kind.__name__.strip('_')})")
    made[id(value)] = result
    return result


NDARRAY = _Name("numpy.ndarray")
KNOWN: dict[str, _Name] = {
    "numpy.ndarray": NDARRAY,
    "numpy.dtype": _Name("numpy.dtype", _Kind),
    "_codecs.encode": _Name("_codecs.encode", _encoded),
    # Both are how Python 3 writes no bytes for Python 2.
    "__builtin__.bytes": _Name("bytes", lambda: b""),
    "builtins.bytes": _Name("bytes", lambda: b""),
}
for core in ("core", "_core"):  # numpy 2 has another name for the same modules.
    KNOWN[f"numpy.{core}.multiarray._reconstruct"] = _Name("_reconstruct", _Array)
    KNOWN[f"numpy.{core}.multiarray.scalar"] = _Name("scalar", _scalar)
    KNOWN[f"numpy.{core}.numeric._frombuffer"] = _Name("_frombuffer", _with_content)
