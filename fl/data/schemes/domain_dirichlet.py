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
    """Divide each domain over ``clients_per_domain`` clients of its own as `dirichlet` divides all.

    ``labels`` and ``domains`` are whole numbers ``[samples]``. Clients are numbered domain by
    domain, in ascending order; domains draw their shares independently; ``attrs["notes"]`` names
    the domains whose clients had too few samples.

    clients_per_domain: number of clients of each domain.
    alpha: concentration of the shares; with small values each class has few clients.
    equal_clients: whether to divide a domain like `client_dirichlet`, which needs no minimum and no
    redraw (as FedL2P does; Lee et al. 2023).
    equal_domains: whether to use as many random samples of each domain as the smallest one has.
    min_samples: smallest number of samples of a client.
    min_per_class: smallest number of samples of each class of a client; 0 requires none.
    redraws: largest number of times that shares are drawn again for these minima.

    Raises:
        DataError: If the data set has no domains (``domains`` is None), if a domain has fewer than
            ``min_samples`` samples per client, and in the cases of `dirichlet`.
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
