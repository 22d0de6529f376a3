"""Skewed sizes: few clients hold much and many hold little, of a few classes each.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar and V. Smith. Federated Optimization in
Heterogeneous Networks. MLSys 2020. arXiv:1812.06127 (MNIST and FEMNIST, appendix C.1).
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from fl.base.fields import Bound, Count, Index, NonNegative
from fl.base.rng import generator
from fl.data.scheme import Assignment, scheme
from fl.data.schemes.pathological import unused
from fl.data.splitting import (
    MIN_CLIENT_SAMPLES,
    check_clients,
    choose_classes,
    deal_by_class,
    require,
    take_by_shares,
)


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

    FedProx writes of a power law; its code draws log-normal factors with sigma 2, one for every
    class of a client. Here a client has one, so that its classes stay even and sizes alone are
    skewed: with all classes in ``classes_per_client`` every client is a copy of the population. The
    classes of clients are chosen as `pathological` does, and a class's holders share what the
    minimum leaves of it in proportion to their factors. Samples of a class that nobody
    holds stay unused; a warning and ``attrs["notes"]`` say so.

    clients: how many there are.
    classes_per_client: how many classes each of them holds.
    sigma: of the log-normal factors; 0 gives all clients one size.
    min_samples: what every client holds at least.

    ``labels`` ``[samples]`` whole numbers.

    Raises `DataError` if ``classes_per_client`` exceeds the classes there are, or if there are
    fewer than ``min_samples`` samples per client, in all or of its classes.
    """
    check_clients("power-law", clients, len(labels), min_samples)
    require(0 <= sigma < np.inf, "power-law", "sigma", sigma, "a finite number >= 0")
    classes, sizes = np.unique(labels, return_counts=True)
    rng, left = generator(seed, "power-law"), sizes.copy()
    key = ("power-law", "classes_per_client")
    holds = choose_classes(*key, rng, clients, len(left), classes_per_client)
    counts = np.zeros((len(left), clients), np.int64)
    for client in range(clients):
        logs = np.where(holds[client], 0.0, -np.inf)
        counts[:, client] = take_by_shares(left, min_samples, logs, rng)
    enough = f"few enough that each gets {min_samples} samples of its classes"
    fits = (counts.sum(axis=0) == min_samples).all()
    require(bool(fits), "power-law", "clients", clients, enough)
    factors = sigma * rng.standard_normal(clients)
    for row, rest, holders in zip(counts, left, holds.T, strict=True):
        logs = np.where(holders, factors, -np.inf)
        row += take_by_shares(np.full(clients, rest), rest, logs, rng)
    notes = unused("power-law", classes, sizes, counts)
    return Assignment(deal_by_class(labels, counts, generator(seed, "power-law samples")), notes)
