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

    ``labels`` and ``domains`` ``[samples]`` whole numbers. Clients are numbered domain by domain,
    in ascending order; domains draw their shares independently; ``attrs["notes"]`` names the
    domains that needed repair.

    clients_per_domain: how many there are of each domain.
    alpha: concentration of the shares; small values leave classes to few clients each.
    equal_clients: divide a domain as `client_dirichlet` divides all, where no minimum and no redraw
    is needed (as FedL2P does; Lee et al. 2023).
    equal_domains: of each domain, only as many samples are used as the smallest has, at random.
    min_samples: the least that a client may hold.
    min_per_class: the least that a client may hold of every class; 0 asks for none.
    redraws: how often shares are drawn again for these minima before samples are moved instead.

    Raises `DataError` if the data set has no domains (``domains`` is None), if a domain has fewer
    than ``min_samples`` samples per client, and as `dirichlet` does.
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
        least=max(MIN_CLIENT_SAMPLES, min_samples),
        **keys,
    )
