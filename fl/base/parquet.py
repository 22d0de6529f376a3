"""Reading of users' Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fl.base.errors import DataError, wrap_read_errors

if TYPE_CHECKING:
    import pandas as pd


def read(path: str | Path) -> tuple[pd.DataFrame, dict[bytes, bytes]]:
    """Return the table in a Parquet file, and the metadata of its schema.

    The notes of pandas on types and indices are ignored.

    Raises:
        DataError: If the file does not exist, is damaged, or has two columns with the same name.
    """
    import pyarrow.parquet as pq

    with wrap_read_errors(path, "cannot be read as Parquet"):
        with pq.ParquetFile(path) as file:
            stored = file.read()
        names = stored.column_names
        table = stored.to_pandas(ignore_metadata=True)
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"{path}: has two columns {name!r}", advice="rename one of them")
    return table, dict(stored.schema.metadata or {})
