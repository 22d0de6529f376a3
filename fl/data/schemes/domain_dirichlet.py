"""Feature and label skew: clients of one domain each, with Dirichlet shares of its classes.

M. Yurochkin, M. Agarwal, S. Ghosh, K. Greenewald, N. Hoang and Y. Khazaeni. Bayesian Nonparametric
Federated Learning of Neural Networks. ICML 2019 (the shares).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from fl.data.schemes.dirichlet import dirichlet
from fl.data.schemes.domain import within_domains
from fl.data.split import LEAST
from fl.fields import Count, Index, Positive, Share


def domain_dirichlet(
    labels: np.ndarray,
    domains: np.ndarray | None,
    *,
    clients_per_domain: Count,
    alpha: Positive,
    seed: Index = 0,
    val: Share = 0.1,
    test: Share = 0.2,
    min_samples: Count = 10,
    redraws: Count = 100,
) -> pd.DataFrame:
    """Divide each domain over ``clients_per_domain`` clients of its own as `dirichlet` divides all.

    ``labels`` and ``domains`` ``[samples]`` whole numbers. Clients are numbered domain by domain,
    in ascending order; domains draw their shares independently. Returns the partition table
    (sample, client, split) with a column ``domain`` (int32); ``attrs["notes"]`` names the domains
    that needed repair.

    Raises `DataError` if the data set has no domains (``domains`` is None), if a domain has fewer
    than ``min_samples`` samples per client, and as `dirichlet` does.
    """

    def draw(mine: np.ndarray, key: int) -> pd.DataFrame:
        return dirichlet(
            mine,
            clients=clients_per_domain,
            alpha=alpha,
            seed=key,
            min_samples=min_samples,
            redraws=redraws,
        )

    return within_domains(
        "domain-dirichlet",
        labels,
        domains,
        draw,
        clients_per_domain,
        seed=seed,
        val=val,
        test=test,
        least=max(LEAST, min_samples),
    )
