"""A partition table of the user's own."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fl.api.task import for_any_task
from fl.data.partition_table import read_users_table, validate


@for_any_task
def file(labels: np.ndarray, *, path: str) -> pd.DataFrame:
    """Read a partition from a Parquet table or a pickle of FL-bench; check it against the labels.

    The table has the columns `sample` (row in the data set), `client` (0, 1, ...) and `split`
    (train, val, test). A column `unseen` (true or false) can mark clients held out of training. The
    order of rows and other columns stay.

    A ``.pkl`` is the ``partition.pkl`` of FL-bench, whose rows count the data set's samples. It is
    read without running code.

    Args:
        labels: Classes of all samples, int64 [samples].
        path: Path of the table or pickle; ``~`` and ``$VARIABLES`` are replaced.

    Raises:
        DataError: If the file cannot be read, or `fl.data.partition_table.validate` rejects the
            table.
    """
    table = read_users_table({"path": path})
    validate(table, labels, source=path)
    return table
