"""Other people's Parquet files, read whole or refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fl.base.errors import DataError, reading

if TYPE_CHECKING:
    import pandas as pd


def read(path: str | Path) -> tuple[pd.DataFrame, dict[bytes, bytes]]:
    """The table in a Parquet file, and the metadata of its schema.

    What pandas once noted in the file about types and indices is ignored.

    Raises:
        DataError: If it is not there, is no whole Parquet file, or has two columns of one name.
    """
    import pyarrow.parquet as pq

    with reading(path, "is no readable Parquet file"):
        with pq.ParquetFile(path) as file:
            stored = file.read()
        names = stored.column_names
        table = stored.to_pandas(ignore_metadata=True)
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"{path}: has the column {name!r} twice. Allowed: each once")
    return table, dict(stored.schema.metadata or {})
