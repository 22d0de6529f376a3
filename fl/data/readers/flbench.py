"""Partitions of FL-bench: the file ``partition.pkl`` that its ``generate_data.py`` writes.

The pickle, which is read without running code, has in ``data_indices`` the samples of each client
by split, numbered as in the data set. Of published sets, the samples for tests come last.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fl.base.errors import DataError, wrap_read_errors
from fl.base.files import is_file
from fl.base.schema import SPLITS
from fl.data.readers.pickles import load_pickle


def read_partition(path: Path) -> pd.DataFrame:
    """Return the partition table of a file of FL-bench, sorted by client, split and sample.

    Raises:
        DataError: If the file cannot be read, or a client has no training or no test samples.
    """
    source = "the file partition.pkl of FL-bench"
    if not is_file(path):
        raise DataError(f"{path}: does not exist", source)
    content = load_pickle(path)
    clients = content.get("data_indices") if isinstance(content, dict) else None
    if not isinstance(clients, list) or not clients:
        raise DataError(f"{path}: data_indices: is no list of clients", source)
    pieces = []
    for client, samples_by_split in enumerate(clients):
        at = f"{path}: data_indices.{client}"
        if not isinstance(samples_by_split, dict) or not {*samples_by_split} <= {*SPLITS}:
            allowed = f"samples by split: {', '.join(SPLITS)}"
            raise DataError(f"{at}: is {samples_by_split!r:.50}", allowed)
        for split in SPLITS:
            sample = _samples(samples_by_split.get(split, ()), f"{at}.{split}")
            if not len(sample) and split != "val":
                advice = "generate it with --split sample, and with more samples for each client"
                raise DataError(f"{at}.{split}: is empty", "one sample or more", advice)
            columns = {"sample": np.sort(sample), "client": np.int32(client), "split": split}
            pieces.append(pd.DataFrame(columns).astype({"split": "string"}))
    return pd.concat(pieces, ignore_index=True)


def _samples(values: Any, at: str) -> np.ndarray:
    """Return a list or an array of whole numbers as int64 ``[samples]``."""
    with wrap_read_errors(at, "is no list of whole numbers", "generate the partition again"):
        array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DataError(f"{at}: is {array.dtype} {list(array.shape)}", "a list of whole numbers")
    return array.astype(np.int64)
