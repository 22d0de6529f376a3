"""Label skew by Dirichlet shares of the classes within every client, all of one size.

T.-M. H. Hsu, H. Qi and M. Brown. Measuring the Effects of Non-Identical Data Distribution for
Federated Visual Classification. 2019. arXiv:1909.06335.
"""

from __future__ import annotations

import numpy as np

from fl.base.fields import Count, Index, Positive
from fl.base.rng import generator
from fl.data.scheme import Assignment, scheme
from fl.data.splitting import (
    check_alpha,
    check_clients,
    deal_by_class,
    log_gamma_draws,
    take_by_shares,
)


@scheme
def client_dirichlet(
    labels: np.ndarray, *, clients: Count, alpha: Positive, seed: Index
) -> Assignment:
    """Give every client N/K samples, of classes in shares q_k ~ Dir(alpha, ..., alpha).

    As FedL2P does (Lee et al. 2023), with a symmetric prior. Hsu et al. multiply alpha by the
    population's shares, so that their alpha is this alpha times the number of classes if classes
    are equally frequent. All samples are used; sizes differ by at most one. Clients draw in random
    order, without replacement: the share of a class without remaining samples goes to the client's
    other classes in proportion. So the last clients get what remains.

    Args:
        labels: Classes of all samples, int64 [samples].
        clients: Number of clients.
        alpha: Concentration of the shares; small values give clients few classes each.
        seed: Seed of the random numbers.

    Raises:
        DataError: If ``alpha`` is not a finite number > 0, or if there are fewer than three samples
            for each client.
    """
    check_alpha("client-dirichlet", alpha)
    check_clients("client-dirichlet", clients, len(labels))
    rng, remaining = generator(seed, "client-dirichlet"), np.unique(labels, return_counts=True)[1]
    sizes = len(labels) // clients + (np.arange(clients) < len(labels) % clients)
    counts = np.zeros((len(remaining), clients), np.int64)
    for client in rng.permutation(clients):
        counts[:, client] = take_by_shares(
            remaining, sizes[client], log_gamma_draws(rng, alpha, len(remaining)), rng
        )
    return Assignment(deal_by_class(labels, counts, generator(seed, "client-dirichlet samples")))
