"""Other people's Parquet files, read whole or refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fl.base.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


def read(path: str | Path) -> tuple[pd.DataFrame, dict[bytes, bytes]]:
    """The table in a Parquet file, and the metadata of its schema.

    What pandas once noted in the file about types and indices is ignored.

    Raises:
        DataError: If it is no whole Parquet file, or has two columns of one name.
        OSError: If the disk refuses.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            stored = file.read()
        names = stored.column_names
        table = stored.to_pandas(ignore_metadata=True)
    except OSError as error:
        # What the reader finds wrong in the bytes is an OSError too, but of no number.
        if error.errno is not None:
            raise
        raise DataError(f"{path}: is no readable Parquet file ({_line(error)})") from error
    # Bytes of others break readers in ways that nobody lists: text that is no text, sizes that
    # overflow or that no memory holds.
    except (
        *(pa.ArrowException, ValueError, TypeError, LookupError),
        *(ArithmeticError, MemoryError, NotImplementedError, RecursionError),
    ) as error:
        raise DataError(f"{path}: is no readable Parquet file ({_line(error)})") from error
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"{path}: has the column {name!r} twice; allowed: each once")
    return table, dict(stored.schema.metadata or {})


def _line(error: BaseException) -> str:
    """An error in one short line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}..."
