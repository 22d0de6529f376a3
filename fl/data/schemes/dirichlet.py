"""Label skew by Dirichlet shares of every class over the clients.

M. Yurochkin, M. Agarwal, S. Ghosh, K. Greenewald, N. Hoang and Y. Khazaeni. Bayesian Nonparametric
Federated Learning of Neural Networks. ICML 2019.
"""

from __future__ import annotations

import logging
from typing import Annotated

import numpy as np

from fl.base.fields import Bound, Count, Index, Positive
from fl.base.rng import generator
from fl.data.scheme import Assignment, scheme
from fl.data.splitting import (
    MIN_CLIENT_SAMPLES,
    check_alpha,
    check_clients,
    deal_by_class,
    log_gamma_draws,
    require,
)

logger = logging.getLogger(__name__)


@scheme
def dirichlet(
    labels: np.ndarray,
    *,
    clients: Count,
    alpha: Positive,
    seed: Index,
    min_samples: Annotated[int, Bound(low=MIN_CLIENT_SAMPLES)] = 10,
    min_per_class: Index = 0,
    redraws: Count = 100,
) -> Assignment:
    """Divide each class c over the K clients in shares q_c ~ Dir(alpha, ..., alpha).

    A client that already has N/K samples gets none of the following classes, and its share goes to
    the others in proportion (as in FedSaC, pFedGraph and FedFM). All shares are drawn again until
    each client has ``min_samples``. With ``min_per_class`` > 0, no client is passed over, and each
    class is drawn again until every client has that many samples of it (with 1: the CIFAR-10 of the
    adaptive MMD constraints for Ditto).

    There are at most ``redraws`` new draws. If a client still has too few samples, of a class or in
    all, samples move to it one by one, each from the client that has the most, and from that
    client's most frequent class. A warning and ``attrs["notes"]`` report this.

    Args:
        labels: Classes of all samples, int64 [samples].
        clients: Number of clients.
        alpha: Concentration of the shares; small values give clients few classes each.
        seed: Seed of the random numbers.
        min_samples: Least number of samples of a client.
        min_per_class: Least number of samples of each class on a client; 0: no minimum.
        redraws: Number of new draws for these minima, before samples are moved instead.

    Raises:
        DataError: If ``alpha`` is not a finite number > 0, or if there are fewer than
            ``min_samples`` samples for each client, or ``min_per_class`` of a class.
    """
    check_alpha("dirichlet", alpha)
    at_least = f"at least {MIN_CLIENT_SAMPLES}, one each for train, val and test"
    require(min_samples >= MIN_CLIENT_SAMPLES, "dirichlet", "min_samples", min_samples, at_least)
    require(redraws >= 0, "dirichlet", "redraws", redraws, "a whole number >= 0")
    check_clients("dirichlet", clients, len(labels), min_samples)
    sizes = np.unique(labels, return_counts=True)[1]
    allowed = (
        f"0 to {sizes.min() // clients}, as there are {sizes.min()} samples of the rarest class"
    )
    fits = 0 <= min_per_class * clients <= sizes.min()
    require(fits, "dirichlet", "min_per_class", min_per_class, f"{allowed} for {clients} clients")

    rng = generator(seed, "dirichlet shares")
    if min_per_class:
        counts = _draw_all(rng, sizes, clients, alpha, min_per_class, redraws)
    else:
        counts = _draw(rng, sizes, clients, alpha, min_samples, redraws)
    notes = []
    cases = (_repair_each, min_per_class, "samples of a class"), (_repair, min_samples, "samples")
    for repair, minimum, unit in cases:
        short, moved = repair(counts, minimum)
        if moved:
            problem = f"{short} of {clients} clients had fewer than {minimum} {unit}"
            mended = f"moved {moved} samples to them from the largest clients"
            note = f"with alpha {alpha:g}, {problem} after {redraws} redraws; {mended}"
            notes.append(f"dirichlet: {note}")
            logger.warning("%s", notes[-1])
    return Assignment(deal_by_class(labels, counts, generator(seed, "dirichlet samples")), notes)


def _draw(
    rng: np.random.Generator,
    sizes: np.ndarray,
    clients: int,
    alpha: float,
    minimum: int,
    redraws: int,
) -> np.ndarray:
    """Draw counts ``[classes, clients]``; clients with N/K samples get no further class.

    Counts are drawn again until each client has ``minimum`` samples, ``redraws`` times at most.
    """
    counts = np.zeros((len(sizes), clients), np.int64)
    for _ in range(redraws + 1):
        total = np.zeros(clients, np.int64)
        for row, size in zip(counts, sizes, strict=True):
            logs = np.where(
                total * clients < sizes.sum(), log_gamma_draws(rng, alpha, clients), -np.inf
            )
            row[:] = _cut(logs, size)
            total += row
        if total.min() >= minimum:
            break
    return counts


def _draw_all(
    rng: np.random.Generator,
    sizes: np.ndarray,
    clients: int,
    alpha: float,
    minimum: int,
    redraws: int,
) -> np.ndarray:
    """Draw counts ``[classes, clients]`` until each client has ``minimum`` of each class."""
    counts = np.zeros((len(sizes), clients), np.int64)
    for row, size in zip(counts, sizes, strict=True):
        for _ in range(redraws + 1):
            row[:] = _cut(log_gamma_draws(rng, alpha, clients), size)
            if row.min() >= minimum:
                break
    return counts


def _cut(logs: np.ndarray, size: int) -> np.ndarray:
    """Divide ``size`` samples in the proportions exp(logs) into whole numbers."""
    cuts = np.cumsum(np.exp(logs - logs.max()))
    return np.diff(np.floor(cuts / cuts[-1] * size), prepend=0).astype(np.int64)


def _repair_each(counts: np.ndarray, minimum: int) -> tuple[int, int]:
    """Fill clients with too few samples of a class; return their number and samples moved."""
    short = int((counts < minimum).any(axis=0).sum())
    return short, sum(_repair(counts[c : c + 1], minimum)[1] for c in range(len(counts)))


def _repair(counts: np.ndarray, minimum: int) -> tuple[int, int]:
    """Fill clients with too few samples, in place; return their number and samples moved."""
    sizes = counts.sum(axis=0)
    short = np.flatnonzero(sizes < minimum)
    moved = int((minimum - sizes[short]).sum())
    for client in short:
        while sizes[client] < minimum:
            donor = int(sizes.argmax())
            label = int(counts[:, donor].argmax())
            for array in (counts[label], sizes):
                array[donor] -= 1
                array[client] += 1
    return len(short), moved
