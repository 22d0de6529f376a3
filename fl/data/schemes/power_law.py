"""Skewed sizes: few large and many small clients, with few classes each.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar and V. Smith. Federated Optimization in
Heterogeneous Networks. MLSys 2020. arXiv:1812.06127 (MNIST and FEMNIST, appendix C.1).
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from fl.api.task import for_any_task
from fl.base.fields import Bound, Count, Index, NonNegative
from fl.base.rng import generator
from fl.data.scheme import Assignment, scheme
from fl.data.schemes.pathological import note_unused
from fl.data.splitting import (
    MIN_CLIENT_SAMPLES,
    check_clients,
    choose_classes,
    deal_by_class,
    require,
    take_by_shares,
)


@for_any_task
@scheme
def power_law(
    labels: np.ndarray,
    *,
    clients: Count,
    classes_per_client: Count = 2,
    sigma: NonNegative = 2.0,
    min_samples: Annotated[int, Bound(low=MIN_CLIENT_SAMPLES)] = 10,
    seed: Index,
) -> Assignment:
    """Give each client ``min_samples``, and more in proportion to exp(sigma z_k), z_k ~ N(0, 1).

    FedProx mentions a power law; its code draws log-normal factors with sigma 2, one for every
    class of a client. Here a client has one factor, so that its classes stay even and only sizes
    are skewed: with all classes in ``classes_per_client``, every client is a copy of the
    population. Classes are chosen as by `pathological`, and clients of a class share what remains
    after the minimum in proportion to their factors. Samples of a class without clients are not
    used; a warning and ``attrs["notes"]`` report this. Samples with targets or masks count as one
    class.

    Args:
        labels: Classes of all samples, int64 [samples].
        clients: Number of clients.
        classes_per_client: Number of classes of each client.
        sigma: Standard deviation of the logarithm of factors; 0 gives all clients one size.
        min_samples: Least number of samples of a client.
        seed: Seed of the random numbers.

    Raises:
        DataError: If ``classes_per_client`` exceeds the number of classes, or if there are fewer
            than ``min_samples`` samples for each client, in all or of its classes.
    """
    check_clients("power-law", clients, len(labels), min_samples)
    require(0 <= sigma < np.inf, "power-law", "sigma", sigma, "a finite number >= 0")
    classes, sizes = np.unique(labels, return_counts=True)
    rng, remaining = generator(seed, "power-law"), sizes.copy()
    key = ("power-law", "classes_per_client")
    is_held = choose_classes(*key, rng, clients, len(remaining), classes_per_client)
    counts = np.zeros((len(remaining), clients), np.int64)
    for client in range(clients):
        logs = np.where(is_held[client], 0.0, -np.inf)
        counts[:, client] = take_by_shares(remaining, min_samples, logs, rng)
    allowed = f"few enough that each gets {min_samples} samples of its classes"
    fits = (counts.sum(axis=0) == min_samples).all()
    require(bool(fits), "power-law", "clients", clients, allowed)
    factors = sigma * rng.standard_normal(clients)
    for row, size, holders in zip(counts, remaining, is_held.T, strict=True):
        logs = np.where(holders, factors, -np.inf)
        row += take_by_shares(np.full(clients, size), size, logs, rng)
    notes = note_unused("power-law", classes, sizes, counts)
    return Assignment(deal_by_class(labels, counts, generator(seed, "power-law samples")), notes)
