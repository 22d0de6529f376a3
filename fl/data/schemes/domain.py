"""Feature skew: every client holds samples of one domain, with the classes of that domain.

X. Li, M. Jiang, X. Zhang, M. Kamp and Q. Dou. FedBN: Federated Learning on Non-IID Features via
Local Batch Normalization. ICLR 2021 (section 5: one data set per client, and several clients each).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from fl.data.schemes.homogeneous import homogeneous
from fl.data.split import LEAST, NOBODY, check, require, table
from fl.errors import DataError
from fl.fields import Count, Index, Share
from fl.rng import generator


def domain(
    labels: np.ndarray,
    domains: np.ndarray | None,
    *,
    clients_per_domain: Count = 1,
    seed: Index = 0,
    val: Share = 0.1,
    test: Share = 0.2,
) -> pd.DataFrame:
    """Deal each domain's samples class by class to ``clients_per_domain`` clients of its own.

    ``labels`` and ``domains`` ``[samples]`` whole numbers. Clients are numbered domain by domain,
    in ascending order; within a domain their sizes and counts of each class differ by one at most.
    Returns the partition table (sample, client, split) with a column ``domain`` (int32).

    Raises `DataError` if the data set has no domains (``domains`` is None), if there are fewer than
    three samples per client in a domain, or no such shares.
    """

    def draw(mine: np.ndarray, key: int) -> pd.DataFrame:
        return homogeneous(mine, clients=clients_per_domain, seed=key)

    return within_domains(
        "domain", labels, domains, draw, clients_per_domain, seed=seed, val=val, test=test
    )


def within_domains(
    scheme: str,
    labels: np.ndarray,
    domains: np.ndarray | None,
    draw: Callable[[np.ndarray, int], pd.DataFrame],
    clients_per_domain: int,
    *,
    seed: int,
    val: float,
    test: float,
    least: int = LEAST,
) -> pd.DataFrame:
    """Another scheme applied to each domain by itself, as the partition table of them all.

    ``draw(labels, seed)`` is the scheme: from the labels of one domain's samples to a table over
    ``clients_per_domain`` clients, of which who holds what is taken. Domains draw independently.
    Raises `DataError` as `domain` does, with ``least`` samples per client.
    """
    labels = check(scheme, labels, val, test)
    if domains is None:
        raise DataError(
            f"partition {scheme}: the data set has no domains; allowed: a data set that has, or the"
            " scheme homogeneous, dirichlet or pathological"
        )
    domains = np.asarray(domains)
    same = domains.shape == labels.shape
    require(same, scheme, "domains", list(domains.shape), f"the shape {list(labels.shape)}")
    client, notes = np.full(len(labels), NOBODY, np.int32), []
    for place, number in enumerate(np.unique(domains)):
        mine = np.flatnonzero(domains == number)
        _check_size(scheme, clients_per_domain, len(mine), number, least)
        key = int(generator(seed, "domain", int(number)).integers(2**63))
        drawn = draw(labels[mine], key)
        client[mine[drawn["sample"]]] = drawn["client"] + place * clients_per_domain
        notes += [f"domain {number}: {note}" for note in drawn.attrs["notes"]]
    made = table(scheme, client, labels, seed=seed, val=val, test=test, notes=notes)
    return made.assign(domain=domains[made["sample"]].astype(np.int32))


def _check_size(scheme: str, clients: int, samples: int, domain: int, least: int) -> None:
    allowed = f"1 to {samples // least}" if samples >= least else "none"
    allowed += f", as domain {domain} has {samples} samples and each client needs {least}"
    require(1 <= clients <= samples // least, scheme, "clients_per_domain", clients, allowed)
