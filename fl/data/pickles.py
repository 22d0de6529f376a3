"""Pickles of others, read without running what is in them.

A pickle is a program: the plain ``pickle.load`` runs whatever its author wrote. This reader knows
numpy's arrays and Python's plain containers, and refuses everything else by name.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, BinaryIO

from fl.data.archives import name_of
from fl.errors import DataError

KNOWN = {
    "numpy.dtype",
    "numpy.ndarray",
    # numpy 2 and Python 2 have other names for some of the same modules.
    *(f"numpy.{core}.multiarray._reconstruct" for core in ("core", "_core")),
    *(f"numpy.{core}.multiarray.scalar" for core in ("core", "_core")),
    *(f"numpy.{core}.numeric._frombuffer" for core in ("core", "_core")),
    *(f"builtins.{name}" for name in ("bytearray", "complex", "frozenset", "set")),
    *(f"__builtin__.{name}" for name in ("bytearray", "complex", "frozenset", "set")),
    "collections.OrderedDict",
    "_codecs.encode",  # How Python 3 writes bytes for Python 2.
}


class _Refused(Exception):
    pass


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """The thing of that name, if it is one of `KNOWN`."""
        if f"{module}.{name}" not in KNOWN:
            raise _Refused(f"{module}.{name}")
        return super().find_class(module, name)


def load(stream: Path | BinaryIO, encoding: str = "bytes") -> Any:
    """What is pickled in a file or a stream: arrays, numbers, text, containers of such.

    ``encoding`` is what the text of Python 2 becomes, as in `pickle.load`. Raises `DataError` that
    names the file and what it asks for if that is anything else, or if the pickle is damaged.
    """
    title = name_of(stream)
    try:
        if isinstance(stream, Path):
            with stream.open("rb") as file:
                return _Unpickler(file, encoding=encoding).load()
        return _Unpickler(stream, encoding=encoding).load()
    except DataError:
        raise  # The archive that it is in is damaged.
    except _Refused as error:
        raise DataError(
            f"{title}: asks for {error}; allowed in a pickle: numpy arrays, numbers, text and"
            " containers of them; nothing of it was run. Get the file from its publisher"
        ) from None
    except Exception as error:  # A damaged pickle may raise anything.
        raise DataError(
            f"{title}: is no complete pickle ({type(error).__name__}: {error}); delete the file, or"
            " the archive that it is in, to fetch it again"
        ) from error
