"""The hyper-parameters that a study varies, as columns of its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

PREFIX = "hp."
"""What their columns' names begin with: a hyper-parameter may be called as another column is."""


def columns(points: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A row for each grid point, a column ``hp.<key>`` for each key that any of them has.

    Columns are sorted by name. Whole numbers are ``Int64``, other numbers ``float64``, true and
    false ``boolean``, all else is text. A point without the key has an empty cell.
    """
    keys = sorted({key for point in points for key in point})
    return pd.DataFrame(
        {PREFIX + key: _column([point.get(key) for point in points]) for key in keys},
        index=range(len(points)),
    )


def _column(values: Sequence[Any]) -> pd.Series:
    kinds = {type(value) for value in values if value is not None}
    for dtype, allowed in (("boolean", {bool}), ("Int64", {int}), ("float64", {int, float})):
        if kinds <= allowed:
            return pd.Series(values, dtype=dtype)
    return pd.Series([None if v is None else str(v) for v in values], dtype="string")
