"""Label skew by Dirichlet shares of every class over the clients.

M. Yurochkin, M. Agarwal, S. Ghosh, K. Greenewald, N. Hoang and Y. Khazaeni. Bayesian Nonparametric
Federated Learning of Neural Networks. ICML 2019.
"""

from __future__ import annotations

import logging
import math
from typing import Annotated

import numpy as np
import pandas as pd

from fl.data.split import LEAST, check, check_clients, deal, require, table
from fl.fields import Bound, Count, Index, Positive, Share
from fl.rng import generator

logger = logging.getLogger(__name__)


def dirichlet(
    labels: np.ndarray,
    *,
    clients: Count,
    alpha: Positive,
    seed: Index = 0,
    val: Share = 0.1,
    test: Share = 0.2,
    min_samples: Annotated[int, Bound(low=LEAST)] = 10,
    redraws: Count = 100,
) -> pd.DataFrame:
    """Divide each class c over the K clients in shares q_c ~ Dir(alpha, ..., alpha).

    A client that already holds N/K samples gets none of the classes that follow, and its share goes
    to the others in proportion (as FedSaC, pFedGraph and FedFM do). Everything is drawn again until
    each client has ``min_samples``, ``redraws`` times at most. If a client is still short, samples
    move to it one by one, each from the client that is the largest then and from that client's most
    frequent class; a warning and ``attrs["notes"]`` say so.

    ``labels`` ``[samples]`` whole numbers. Returns the partition table (sample, client, split).

    Raises `DataError` if ``alpha`` is not a finite number > 0, if there are fewer than
    ``min_samples`` samples per client, or no such shares.
    """
    labels = check("dirichlet", labels, val, test)
    positive = math.isfinite(alpha) and alpha > 0
    require(positive, "dirichlet", "alpha", alpha, "a finite number > 0")
    needs = f"at least {LEAST}, one each for train, val and test"
    require(min_samples >= LEAST, "dirichlet", "min_samples", min_samples, needs)
    require(redraws >= 0, "dirichlet", "redraws", redraws, "a whole number >= 0")
    check_clients("dirichlet", clients, len(labels), min_samples)

    sizes = np.unique(labels, return_counts=True)[1]
    rng, notes = generator(seed, "dirichlet shares"), []
    for _ in range(redraws + 1):
        counts = _draw(rng, sizes, clients, alpha)
        if counts.sum(axis=0).min() >= min_samples:
            break
    else:
        notes.append(_repair(counts, min_samples, alpha, redraws))
        logger.warning("%s", notes[0])
    client = deal(labels, counts, generator(seed, "dirichlet samples"))
    return table("dirichlet", client, labels, seed=seed, val=val, test=test, notes=notes)


def _draw(rng: np.random.Generator, sizes: np.ndarray, clients: int, alpha: float) -> np.ndarray:
    """How many samples of each class each client gets: ``[classes, clients]``."""
    counts = np.zeros((len(sizes), clients), np.int64)
    held = np.zeros(clients, np.int64)
    for row, size in zip(counts, sizes, strict=True):
        logs = np.where(held * clients < sizes.sum(), _log_gamma(rng, alpha, clients), -np.inf)
        cuts = np.cumsum(np.exp(logs - logs.max()))
        row[:] = np.diff(np.floor(cuts / cuts[-1] * size), prepend=0)
        held += row
    return counts


def _log_gamma(rng: np.random.Generator, alpha: float, size: int) -> np.ndarray:
    """Logarithms of Gamma(alpha) draws, which normalised are Dirichlet shares.

    Gamma(alpha) = Gamma(alpha + 1) U^(1/alpha) (Marsaglia and Tsang 2000, section 6). The logarithm
    keeps the proportions at small alpha, where the draws themselves all underflow to 0.
    """
    uniform = np.log1p(-rng.random(size))
    return np.log(rng.standard_gamma(alpha + 1.0, size)) + uniform / max(alpha, 1e-300)


def _repair(counts: np.ndarray, min_samples: int, alpha: float, redraws: int) -> str:
    """Fill the clients that are short, in place, and say what was done."""
    sizes = counts.sum(axis=0)
    short = np.flatnonzero(sizes < min_samples)
    moved = int((min_samples - sizes[short]).sum())
    for client in short:
        while sizes[client] < min_samples:
            donor = int(sizes.argmax())
            label = int(counts[:, donor].argmax())
            for array in (counts[label], sizes):
                array[donor] -= 1
                array[client] += 1
    return (
        f"dirichlet: with alpha {alpha:g}, {len(short)} of {len(sizes)} clients had fewer than"
        f" {min_samples} samples after {redraws} redraws; moved {moved} samples to them from the"
        " largest clients"
    )
