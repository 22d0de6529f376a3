"""Label skew by dominant classes, which have a large share of each client's samples.

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
    """Give every client N/K samples, a ``share`` of them of its ``dominant_classes``.

    The second setting of FedFM; the defaults are those of its code for CIFAR-10 over ten clients.
    Dominant classes are chosen in turn, at random among the classes with the fewest clients, and
    divide the share evenly. All other samples of a client are a small copy of all remaining
    samples, its dominant classes included. All samples are used; sizes differ by at most one. If a
    dominant class has too few samples, the client's other dominant classes and then all others
    replace it; a warning and ``attrs["notes"]`` report this.

    Args:
        labels: Classes of all samples, int64 [samples].
        clients: Number of clients.
        dominant_classes: Number of dominant classes of each client.
        share: Share of a client's samples of its dominant classes.
        seed: Seed of the random numbers.

    Raises:
        DataError: If ``dominant_classes`` exceeds the number of classes, if ``share`` is no share,
            or if there are fewer than three samples for each client.
    """
    check_clients("dominant", clients, len(labels))
    require(0 <= share <= 1, "dominant", "share", share, "0 to 1")
    rng, remaining = generator(seed, "dominant"), np.unique(labels, return_counts=True)[1]
    key = ("dominant", "dominant_classes")
    is_dominant = choose_classes(*key, rng, clients, len(remaining), dominant_classes)
    sizes = len(labels) // clients + (np.arange(clients) < len(labels) % clients)
    dominant_sizes = np.floor(share * sizes + 0.5).astype(np.int64)
    counts, order = np.zeros((len(remaining), clients), np.int64), rng.permutation(clients)
    for client in order:
        logs = np.where(is_dominant[client], 0.0, -np.inf)
        counts[:, client] = take_by_shares(remaining, dominant_sizes[client], logs, rng)
    notes = _note_shortage(int((counts.sum(axis=0) < dominant_sizes).sum()), clients, share)
    for client in order:
        logs = np.log(remaining, out=np.full(len(remaining), -np.inf), where=remaining > 0)
        counts[:, client] += take_by_shares(
            remaining, sizes[client] - counts[:, client].sum(), logs, rng
        )
    return Assignment(deal_by_class(labels, counts, generator(seed, "dominant samples")), notes)


def _note_shortage(short: int, clients: int, share: float) -> list[str]:
    if not short:
        return []
    note = (
        f"dominant: {short} of {clients} clients got less than the share {share:g} of their"
        " dominant classes, which had too few samples"
    )
    logger.warning("%s", note)
    return [note]
