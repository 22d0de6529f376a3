"""Feature skew: every client holds samples of one domain, with the classes of that domain.

X. Li, M. Jiang, X. Zhang, M. Kamp and Q. Dou. FedBN: Federated Learning on Non-IID Features via
Local Batch Normalization. ICLR 2021 (section 5: one data set per client, and several clients each).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np

from fl.api.task import for_any_task
from fl.base.errors import DataError
from fl.base.fields import Count, Index
from fl.base.rng import generator
from fl.data.scheme import Assignment, scheme
from fl.data.schemes.homogeneous import homogeneous
from fl.data.splitting import MIN_CLIENT_SAMPLES, NOBODY, require


@for_any_task
@scheme
def domain(
    labels: np.ndarray,
    domains: np.ndarray | None,
    *,
    clients_per_domain: Count = 1,
    equal_domains: bool = False,
    seed: Index,
) -> Assignment:
    """Distribute the samples of each domain, class by class, to ``clients_per_domain`` clients.

    Clients are numbered domain by domain, in ascending order. Within a domain, their sizes and
    their counts of each class differ by at most one.

    Args:
        labels: Classes of all samples, int64 [samples].
        domains: Domains of all samples, int64 [samples]; None if the data set has none.
        clients_per_domain: Number of clients of each domain.
        equal_domains: Whether each domain only uses as many samples, at random, as the smallest
            domain has (as FedL2P; Lee et al. 2023).
        seed: Seed of the random numbers.

    Raises:
        DataError: If the data set has no domains, or if a domain has fewer than three samples for
            each client.
    """
    return within_domains(
        "domain", labels, domains, homogeneous, clients_per_domain, equal_domains, seed
    )


def within_domains(
    name: str,
    labels: np.ndarray,
    domains: np.ndarray | None,
    inner: Callable[..., object],
    clients: int,
    equal: bool,
    seed: int,
    minimum: int = MIN_CLIENT_SAMPLES,
    **keys: object,
) -> Assignment:
    """Apply another scheme, with its ``keys``, to each domain independently.

    Args:
        name: Name of the scheme, for errors.
        labels: Labels ``[samples]``.
        domains: Domains ``[samples]``, or None.
        inner: The scheme for each domain.
        clients: Number of clients per domain.
        equal: Whether to use equally many samples of each domain.
        seed: The seed.
        minimum: Smallest number of samples of a client.
        keys: Further keys of the inner scheme.

    Raises:
        DataError: If there are no domains or too few samples.
    """
    if domains is None:
        raise DataError(
            f"partition {name}: the data set has no domains",
            advice="another data set, or the scheme homogeneous, dirichlet or pathological",
        )
    numbers, sizes = np.unique(domains, return_counts=True)
    client, notes = np.full(len(labels), NOBODY, np.int32), []
    for index, number in enumerate(numbers):
        rows = np.flatnonzero(domains == number)
        if equal:
            rng = generator(seed, "equal domains", int(number))
            rows = np.sort(rng.choice(rows, sizes.min(), replace=False))
        _check_size(name, clients, len(rows), number, minimum)
        key = int(generator(seed, "domain", int(number)).integers(2**63))
        holders = inspect.unwrap(inner)(labels[rows], clients=clients, seed=key, **keys)
        is_held = holders.client != NOBODY
        client[rows[is_held]] = holders.client[is_held] + index * clients
        notes += [f"domain {number}: {note}" for note in holders.notes]
    return Assignment(client, notes)


def _check_size(scheme: str, clients: int, samples: int, domain: int, minimum: int) -> None:
    allowed = f"1 to {samples // minimum}" if samples >= minimum else "none"
    allowed += f", as domain {domain} has {samples} samples and each client needs {minimum}"
    require(1 <= clients <= samples // minimum, scheme, "clients_per_domain", clients, allowed)
