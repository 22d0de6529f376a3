"""Equal clients: each one has the class shares of the population."""

from __future__ import annotations

import numpy as np

from fl.api.task import for_any_task
from fl.base.fields import Count, Index
from fl.base.rng import generator
from fl.data.scheme import Assignment, scheme
from fl.data.splitting import check_clients


@for_any_task
@scheme
def homogeneous(labels: np.ndarray, *, clients: Count, seed: Index) -> Assignment:
    """Distribute samples class by class, so that all clients have the population's class shares.

    Sizes of clients, and their counts of each class, differ by at most one.

    Args:
        labels: Classes of all samples, int64 [samples].
        clients: Number of clients.
        seed: Seed of the random numbers.

    Raises:
        DataError: If there are fewer than three samples for each client.
    """
    check_clients("homogeneous", clients, len(labels))
    shuffled = generator(seed, "homogeneous").permutation(len(labels))
    client = np.empty(len(labels), np.int32)
    client[np.lexsort((shuffled, labels))] = np.arange(len(labels)) % clients
    return Assignment(client)
