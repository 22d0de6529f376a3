"""A partition table of the user's own."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fl.api.task import for_any_task
from fl.base.folders import path_of
from fl.data.partition_table import read, validate


@for_any_task
def file(labels: np.ndarray, *, path: str) -> pd.DataFrame:
    """Read the Parquet table at ``path`` and check it against ``labels`` ``[samples]``.

    path: path of a Parquet table; ``~`` and ``$VARIABLES`` are expanded. It has columns `sample`
    (row in the data set), `client` (0, 1, ...) and `split` (train, val, test); `unseen` (true or
    false) may mark clients held out of training.

    The table keeps its row order and its extra columns.

    Raises:
        DataError: If the file cannot be read or `fl.data.partition_table.validate` rejects it.
    """
    table = read(path_of(path))
    validate(table, labels, source=path)
    return table
