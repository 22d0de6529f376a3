"""Every client a small copy of the population."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fl.data.split import check, check_clients, table
from fl.fields import Count, Index, Share
from fl.rng import generator


def homogeneous(
    labels: np.ndarray, *, clients: Count, seed: Index = 0, val: Share = 0.1, test: Share = 0.2
) -> pd.DataFrame:
    """Deal the samples class by class, so that every client has the population's class shares.

    ``labels`` ``[samples]`` whole numbers. Between any two clients, sizes and the counts of each
    class differ by one at most. Returns the partition table (sample, client, split).

    Raises `DataError` if there are fewer than three samples per client, or no such shares.
    """
    labels = check("homogeneous", labels, val, test)
    check_clients("homogeneous", clients, len(labels))
    shuffled = generator(seed, "homogeneous").permutation(len(labels))
    client = np.empty(len(labels), np.int32)
    client[np.lexsort((shuffled, labels))] = np.arange(len(labels)) % clients
    return table("homogeneous", client, labels, seed=seed, val=val, test=test)
