"""Tables in memory, written as Parquet files where a data set has a path."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fl.base import files
from fl.base.errors import ConfigError, FedloomError, Location

KEYS = ("frame", "path")
"""Keys of a data set that can have a table in memory as their value."""


def is_frame(value: Any) -> bool:
    """Whether a value is a table in memory: of pandas, or a ``Dataset`` of Hugging Face."""
    is_hugging_face = hasattr(value, "features") and hasattr(value, "to_parquet")
    return isinstance(value, pd.DataFrame) or is_hugging_face


def with_paths(keys: Mapping[str, Any], folder: Path, location: Location) -> dict[str, Any]:
    """Return keys of a data set with the path of a file in place of a table in memory.

    Args:
        keys: The keys, such as ``frame`` and ``label``.
        folder: Folder of these files, which are named by their content.
        location: Location of the keys in errors.

    Raises:
        ConfigError: If both ``frame`` and ``path`` are given.
        FedloomError: If the table cannot be written.
    """
    if all(key in keys for key in KEYS):
        raise ConfigError(location / "frame", "is given in addition to path", advice="give one")
    values = dict(keys)
    for key in KEYS:
        if is_frame(values.get(key)):
            values["path"] = str(_write(values.pop(key), folder, location / key))
    return values


def _write(frame: Any, folder: Path, location: Location) -> Path:
    """Write a table as Parquet, if its file does not exist; return its path.

    The index of a DataFrame is no column.
    """
    content = io.BytesIO()
    try:
        if isinstance(frame, pd.DataFrame):
            table = pa.Table.from_pandas(frame, preserve_index=False)
            # Metadata hold the version of pandas, which must not rename a run.
            pq.write_table(table.replace_schema_metadata(None), content)
        else:
            frame.to_parquet(content)
    except (ValueError, TypeError, OSError, NotImplementedError) as error:
        reason = ": ".join(map(str, error.args))
        raise FedloomError(f"{location}: cannot be written as Parquet ({reason})") from None
    digest = hashlib.sha256(content.getbuffer()).hexdigest()[:16]
    path = folder / f"frame-{digest}.parquet"
    if not path.exists():
        with files.disk_errors(path):
            folder.mkdir(parents=True, exist_ok=True)
            files.write_bytes(path, content.getvalue())
    return path
