"""The data set's own clients."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fl.data.split import check, require, table
from fl.errors import DataError
from fl.fields import Index, Share


def natural(
    labels: np.ndarray,
    groups: np.ndarray | None,
    *,
    seed: Index = 0,
    val: Share = 0.1,
    test: Share = 0.2,
) -> pd.DataFrame:
    """Keep the clients that the data came from: writers, hospitals, experiments.

    ``labels`` and ``groups`` ``[samples]``; equal values of ``groups`` are one client, and clients
    are numbered from 0 in ascending order. Returns the partition table (sample, client, split).

    Raises `DataError` if the data set has no clients of its own (``groups`` is None), if a client
    has fewer than three samples, or if there are no such shares.
    """
    labels = check("natural", labels, val, test)
    if groups is None:
        raise DataError(
            "partition natural: the data set has no clients of its own; allowed: a data set that"
            " has, or the scheme homogeneous, dirichlet or pathological"
        )
    groups = np.asarray(groups)
    same = groups.shape == labels.shape
    require(same, "natural", "groups", list(groups.shape), f"the shape {list(labels.shape)}")
    client = np.unique(groups, return_inverse=True)[1]
    return table("natural", client, labels, seed=seed, val=val, test=test)
