"""Tables of metrics, in the columns and types of `fl.base.schema.METRIC_COLUMNS`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from fl.base.schema import METRIC_COLUMNS

TYPES = {"round": np.int32, "client": np.int32, "value": np.float64, "n": np.int64}


def as_rows(rows: Sequence[tuple[int, int, str, str, str, float, int]]) -> pd.DataFrame:
    """A table of rows, each in the order of the columns."""
    given = list(zip(*rows, strict=True)) or [()] * len(METRIC_COLUMNS)
    columns: dict[str, Any] = dict(zip(METRIC_COLUMNS, given, strict=True))
    for name in columns.keys() - TYPES.keys():
        names = list(dict.fromkeys(columns[name]))
        place = {text: code for code, text in enumerate(names)}
        columns[name] = named(np.array([place[text] for text in columns[name]], np.int64), names)
    return table(columns)


def table(columns: dict[str, Any]) -> pd.DataFrame:
    """A table of columns: arrays, and of texts what `named` gives."""
    return pd.DataFrame(
        {
            name: np.asarray(columns[name], TYPES[name]) if name in TYPES else columns[name]
            for name in METRIC_COLUMNS
        }
    )


def named(codes: np.ndarray, names: Sequence[str]) -> Any:
    """A column of texts, of which few differ: a hundred times as fast as from a list of them all.

    Args:
        codes: Of each row, its place among the ``names``.
    """
    return _texts(tuple(names)).take(codes)


@lru_cache(maxsize=64)
def _texts(names: tuple[str, ...]) -> Any:
    """The names as pandas takes texts anywhere, whatever its version makes of them."""
    return pd.Series([*names, ""]).array
