"""The natural clients of a data set."""

from __future__ import annotations

import numpy as np

from fl.api.task import for_any_task
from fl.base.errors import DataError
from fl.data.scheme import Assignment, scheme
from fl.data.splitting import MIN_CLIENT_SAMPLES, SmallClient


@for_any_task
@scheme
def natural(labels: np.ndarray, groups: np.ndarray | None) -> Assignment:
    """Keep the clients of the data: writers, hospitals, experiments.

    Equal values of ``groups`` are one client; clients are numbered from 0 in ascending order.

    Args:
        labels: Classes of all samples, int64 [samples].
        groups: Client of each sample, [samples]; None if the data set has no clients.

    Raises:
        DataError: If the data set has no clients, or `SmallClient` if one has too few samples.
    """
    if groups is None:
        raise DataError(
            "partition natural: the data set has no natural clients",
            advice="another data set, or the scheme homogeneous, dirichlet or pathological",
        )
    numbers, client, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    small = np.flatnonzero(sizes < MIN_CLIENT_SAMPLES)
    if len(small):
        raise SmallClient("natural", int(numbers[small[0]]), int(sizes[small[0]]), len(small))
    return Assignment(client)
