"""Label skew by holding a few classes only, or by missing a few.

B. McMahan, E. Moore, D. Ramage, S. Hampson and B. A. y Arcas. Communication-Efficient Learning of
Deep Networks from Decentralized Data. AISTATS 2017.
"""

from __future__ import annotations

import logging

import numpy as np

from fl.base.fields import Count, Index
from fl.base.rng import generator
from fl.data.scheme import Holders, scheme
from fl.data.split import check_clients, choose_classes, deal, require

logger = logging.getLogger(__name__)


@scheme
def pathological(
    labels: np.ndarray, *, clients: Count, classes_per_client: Count, seed: Index
) -> Holders:
    """Give each client ``classes_per_client`` classes; a class's holders share it evenly.

    After McMahan et al. 2017 and pFedGraph; with all classes but m, the missing classes of FedFM
    (Ye et al. 2023). Clients choose in turn, at random among the classes with the fewest holders so
    far: the numbers of holders differ by one at most, and every class is held where ``clients *
    classes_per_client`` allows. Samples of a class that nobody holds stay unused; a warning and
    ``attrs["notes"]`` say so.

    clients: how many there are.
    classes_per_client: how many classes each of them holds.

    ``labels`` ``[samples]`` whole numbers.

    Raises `DataError` if ``classes_per_client`` exceeds the classes there are, if a class has fewer
    samples than holders, or if a client gets fewer than three samples.
    """
    check_clients("pathological", clients, len(labels))
    classes, sizes = np.unique(labels, return_counts=True)
    rng = generator(seed, "pathological classes")
    key = ("pathological", "classes_per_client")
    holds = choose_classes(*key, rng, clients, len(classes), classes_per_client)
    counts = np.zeros((len(classes), clients), np.int64)
    for row, size, label, holders in zip(counts, sizes, classes, holds.T, strict=True):
        n = int(holders.sum())
        enough = f"few enough that each of the {n} holders of class {label} gets one of its {size}"
        require(n <= size, "pathological", "clients", clients, f"{enough} samples")
        if n:
            row[holders] = size // n + (np.arange(n) < size % n)
    notes = unused("pathological", classes, sizes, counts)
    return Holders(deal(labels, counts, generator(seed, "pathological samples")), notes)


def unused(scheme: str, classes: np.ndarray, sizes: np.ndarray, counts: np.ndarray) -> list[str]:
    """The note that a scheme owes about classes of which ``counts`` ``[classes, clients]`` is 0."""
    lost = counts.sum(axis=1) == 0
    if not lost.any():
        return []
    names = ", ".join(str(label) for label in classes[lost])
    note = f"{scheme}: nobody holds class {names}; {sizes[lost].sum()} samples are unused"
    logger.warning("%s", note)
    return [note]
