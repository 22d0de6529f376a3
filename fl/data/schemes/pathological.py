"""Label skew by holding a few classes only.

B. McMahan, E. Moore, D. Ramage, S. Hampson and B. A. y Arcas. Communication-Efficient Learning of
Deep Networks from Decentralized Data. AISTATS 2017.
"""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd

from fl.data.split import check, check_clients, deal, require, table
from fl.fields import Count, Index, Share
from fl.rng import generator

logger = logging.getLogger(__name__)


def pathological(
    labels: np.ndarray,
    *,
    clients: Count,
    classes_per_client: Count,
    seed: Index = 0,
    val: Share = 0.1,
    test: Share = 0.2,
) -> pd.DataFrame:
    """Give each client ``classes_per_client`` classes; a class's holders share it evenly.

    After McMahan et al. 2017 and pFedGraph. Clients choose in turn, at random among the classes
    with the fewest holders so far: the numbers of holders differ by one at most, and every class
    is held where ``clients * classes_per_client`` allows. Samples of a class that nobody holds stay
    unused; a warning and ``attrs["notes"]`` say so.

    ``labels`` ``[samples]`` whole numbers. Returns the partition table (sample, client, split).

    Raises `DataError` if ``classes_per_client`` exceeds the classes there are, if a class has fewer
    samples than holders, if a client gets fewer than three samples, or if there are no such shares.
    """
    labels = check("pathological", labels, val, test)
    check_clients("pathological", clients, len(labels))
    classes, sizes = np.unique(labels, return_counts=True)
    fits = 1 <= classes_per_client <= len(classes)
    allowed = f"1 to {len(classes)}, the classes there are"
    require(fits, "pathological", "classes_per_client", classes_per_client, allowed)

    holds = _choose(
        generator(seed, "pathological classes"), clients, len(classes), classes_per_client
    )
    counts = np.zeros((len(classes), clients), np.int64)
    for row, size, label, holders in zip(counts, sizes, classes, holds.T, strict=True):
        n = int(holders.sum())
        enough = f"few enough that each of the {n} holders of class {label} gets one of its {size}"
        require(n <= size, "pathological", "clients", clients, f"{enough} samples")
        if n:
            row[holders] = size // n + (np.arange(n) < size % n)
    notes = _unused(classes[~holds.any(axis=0)], sizes[~holds.any(axis=0)])
    client = deal(labels, counts, generator(seed, "pathological samples"))
    return table("pathological", client, labels, seed=seed, val=val, test=test, notes=notes)


def _choose(rng: np.random.Generator, clients: int, classes: int, each: int) -> np.ndarray:
    """Which client holds which class: booleans ``[clients, classes]``."""
    holds = np.zeros((clients, classes), bool)
    holders = np.zeros(classes, np.int64)
    for row in holds:
        row[np.lexsort((rng.random(classes), holders))[:each]] = True
        holders += row
    return holds


def _unused(classes: np.ndarray, sizes: np.ndarray) -> list[str]:
    if not len(classes):
        return []
    names = ", ".join(str(label) for label in classes)
    note = f"pathological: nobody holds class {names}; {sizes.sum()} samples are unused"
    logger.warning("%s", note)
    return [note]
