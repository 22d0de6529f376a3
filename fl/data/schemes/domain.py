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
    """Deal each domain's samples class by class to ``clients_per_domain`` clients of its own.

    ``labels`` and ``domains`` ``[samples]`` whole numbers. Clients are numbered domain by domain,
    in ascending order; within a domain their sizes and counts of each class differ by one at most.

    clients_per_domain: how many there are of each domain.
    equal_domains: of each domain, only as many samples are used as the smallest has, at random
    (as FedL2P does; Lee et al. 2023).

    Raises `DataError` if the data set has no domains (``domains`` is None), or if there are fewer
    than three samples per client in a domain.
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
    least: int = MIN_CLIENT_SAMPLES,
    **keys: object,
) -> Assignment:
    """Another scheme, with its ``keys``, applied to each domain by itself, independently.

    Raises `DataError` as `domain` does, with ``least`` samples per client.
    """
    if domains is None:
        raise DataError(
            f"partition {name}: the data set has no domains. Allowed: a data set that has, or the"
            " scheme homogeneous, dirichlet or pathological"
        )
    numbers, sizes = np.unique(domains, return_counts=True)
    client, notes = np.full(len(labels), NOBODY, np.int32), []
    for place, number in enumerate(numbers):
        mine = np.flatnonzero(domains == number)
        if equal:
            draw = generator(seed, "equal domains", int(number))
            mine = np.sort(draw.choice(mine, sizes.min(), replace=False))
        _check_size(name, clients, len(mine), number, least)
        key = int(generator(seed, "domain", int(number)).integers(2**63))
        holders = inspect.unwrap(inner)(labels[mine], clients=clients, seed=key, **keys)
        given = holders.client != NOBODY
        client[mine[given]] = holders.client[given] + place * clients
        notes += [f"domain {number}: {note}" for note in holders.notes]
    return Assignment(client, notes)


def _check_size(scheme: str, clients: int, samples: int, domain: int, least: int) -> None:
    allowed = f"1 to {samples // least}" if samples >= least else "none"
    allowed += f", as domain {domain} has {samples} samples and each client needs {least}"
    require(1 <= clients <= samples // least, scheme, "clients_per_domain", clients, allowed)
