"""Feature and label skew: clients of one domain each, with Dirichlet shares of its classes.

M. Yurochkin, M. Agarwal, S. Ghosh, K. Greenewald, N. Hoang and Y. Khazaeni. Bayesian Nonparametric
Federated Learning of Neural Networks. ICML 2019 (the shares).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fl.base.fields import Count, Index, Positive
from fl.data.scheme import Assignment, scheme
from fl.data.schemes.client_dirichlet import client_dirichlet
from fl.data.schemes.dirichlet import dirichlet
from fl.data.schemes.domain import within_domains
from fl.data.splitting import MIN_CLIENT_SAMPLES


@scheme
def domain_dirichlet(
    labels: np.ndarray,
    domains: np.ndarray | None,
    *,
    clients_per_domain: Count,
    alpha: Positive,
    equal_clients: bool = False,
    equal_domains: bool = False,
    min_samples: Count = 10,
    min_per_class: Index = 0,
    redraws: Count = 100,
    seed: Index,
) -> Assignment:
    """Divide each domain over ``clients_per_domain`` clients as `dirichlet` divides a data set.

    Clients are numbered domain by domain, in ascending order. Domains draw their shares
    independently; ``attrs["notes"]`` has the names of domains in which samples were moved.

    Args:
        labels: Classes of all samples, int64 [samples].
        domains: Domains of all samples, int64 [samples]; None if the data set has none.
        clients_per_domain: Number of clients of each domain.
        alpha: Concentration of the shares; small values give clients few classes each.
        equal_clients: Whether a domain is divided as by `client_dirichlet`, without minima and new
            draws (as FedL2P; Lee et al. 2023).
        equal_domains: Whether each domain only uses as many samples, at random, as the smallest
            domain has.
        min_samples: Least number of samples of a client.
        min_per_class: Least number of samples of each class on a client; 0: no minimum.
        redraws: Number of new draws for these minima, before samples are moved instead.
        seed: Seed of the random numbers.

    Raises:
        DataError: If the data set has no domains, or a domain has fewer than ``min_samples``
            samples for each client, and as `dirichlet` does.
    """
    keys: dict[str, Any] = {"alpha": alpha}
    if not equal_clients:
        keys |= {"min_samples": min_samples, "min_per_class": min_per_class, "redraws": redraws}
    return within_domains(
        "domain-dirichlet",
        labels,
        domains,
        client_dirichlet if equal_clients else dirichlet,
        clients_per_domain,
        equal_domains,
        seed,
        minimum=max(MIN_CLIENT_SAMPLES, min_samples),
        **keys,
    )
