"""Label skew by dominant classes: some make up much of each client's samples, all of one size.

R. Ye, Z. Ni, C. Xu, J. Wang, S. Chen and Y. C. Eldar. FedFM: Anchor-based Feature Matching for Data
Heterogeneity in Federated Learning. IEEE Transactions on Signal Processing 2023. arXiv:2210.07615.
"""

from __future__ import annotations

import logging

import numpy as np

from fl.base.fields import Count, Index, Share
from fl.base.rng import generator
from fl.data.scheme import Assignment, scheme
from fl.data.splitting import check_clients, choose_classes, deal_by_class, require, take_by_shares

logger = logging.getLogger(__name__)


@scheme
def dominant(
    labels: np.ndarray,
    *,
    clients: Count,
    dominant_classes: Count = 1,
    share: Share = 0.4,
    seed: Index,
) -> Assignment:
    """Give every client N/K samples, a ``share`` of them of its ``dominant_classes`` alone.

    The second setting of FedFM; the defaults are what its code has for CIFAR-10 over ten clients.
    Dominant classes are chosen in turn, at random among those that the fewest clients have so far,
    and divide the share evenly. The rest of each client is a small copy of all that is left then,
    its dominant classes included. All samples are dealt; sizes differ by one at most. Where a
    dominant class has too few samples, the client's others and then the rest take its place; a
    warning and ``attrs["notes"]`` say so.

    clients: how many there are.
    dominant_classes: how many of each client.
    share: of a client's samples that are of its dominant classes.

    ``labels`` ``[samples]`` whole numbers.

    Raises `DataError` if ``dominant_classes`` exceeds the classes there are, if ``share`` is not
    one, or if there are fewer than three samples per client.
    """
    check_clients("dominant", clients, len(labels))
    require(0 <= share <= 1, "dominant", "share", share, "0 to 1")
    rng, left = generator(seed, "dominant"), np.unique(labels, return_counts=True)[1]
    key = ("dominant", "dominant_classes")
    holds = choose_classes(*key, rng, clients, len(left), dominant_classes)
    sizes = len(labels) // clients + (np.arange(clients) < len(labels) % clients)
    wanted = np.floor(share * sizes + 0.5).astype(np.int64)
    counts, order = np.zeros((len(left), clients), np.int64), rng.permutation(clients)
    for client in order:
        logs = np.where(holds[client], 0.0, -np.inf)
        counts[:, client] = take_by_shares(left, wanted[client], logs, rng)
    notes = _lacking(int((counts.sum(axis=0) < wanted).sum()), clients, share)
    for client in order:
        logs = np.log(left, out=np.full(len(left), -np.inf), where=left > 0)
        counts[:, client] += take_by_shares(
            left, sizes[client] - counts[:, client].sum(), logs, rng
        )
    return Assignment(deal_by_class(labels, counts, generator(seed, "dominant samples")), notes)


def _lacking(short: int, clients: int, share: float) -> list[str]:
    if not short:
        return []
    note = (
        f"dominant: {short} of {clients} clients got less than the share {share:g} of their"
        " dominant classes, which had too few samples"
    )
    logger.warning("%s", note)
    return [note]
