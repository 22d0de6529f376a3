"""Label skew by few classes per client, or by few missing classes.

B. McMahan, E. Moore, D. Ramage, S. Hampson and B. Agüera y Arcas. Communication-Efficient Learning
of Deep Networks from Decentralized Data. AISTATS 2017.
"""

from __future__ import annotations

import logging
from typing import Literal

import numpy as np

from fl.base.fields import Count, Index
from fl.base.rng import generator
from fl.data.scheme import Assignment, scheme
from fl.data.splitting import check_clients, choose_classes, deal_by_class, require

logger = logging.getLogger(__name__)


@scheme
def pathological(
    labels: np.ndarray,
    *,
    clients: Count,
    classes_per_client: Count,
    dealt: Literal["random", "blocks"] = "random",
    seed: Index,
) -> Assignment:
    """Give each client ``classes_per_client`` classes; clients of a class share it evenly.

    After McMahan et al. 2017; with all classes but m, the missing classes of FedFM (Ye et al.
    2023). With ``random``, clients choose in turn among the classes with the fewest clients: the
    numbers of clients of classes differ by at most one, and every class has a client if ``clients *
    classes_per_client`` allows. Samples of a class without clients are not used; a warning and
    ``attrs["notes"]`` report this.

    With ``blocks``, as in the code of pFedGraph (Ye et al. ICML 2023) and FedSaC, classes are cut,
    in order, into blocks of ``classes_per_client``, and client i has block i modulo the number of
    blocks. Ten clients of two classes are five pairs: each client has one client with the same
    classes, and eight with no class in common.

    Args:
        labels: Classes of all samples, int64 [samples].
        clients: Number of clients.
        classes_per_client: Number of classes of each client.
        dealt: Distribution of classes: `random` or in `blocks`.
        seed: Seed of the random numbers.

    Raises:
        DataError: If ``classes_per_client`` exceeds the number of classes, if a class has fewer
            samples than clients, if a client gets fewer than three samples, or if blocks are not of
            equal size.
    """
    check_clients("pathological", clients, len(labels))
    classes, sizes = np.unique(labels, return_counts=True)
    if dealt == "blocks":
        is_held = classes_by_block(clients, len(classes), classes_per_client)
    else:
        rng = generator(seed, "pathological classes")
        key = ("pathological", "classes_per_client")
        is_held = choose_classes(*key, rng, clients, len(classes), classes_per_client)
    counts = np.zeros((len(classes), clients), np.int64)
    for row, size, label, holders in zip(counts, sizes, classes, is_held.T, strict=True):
        n = int(holders.sum())
        allowed = f"few enough that each of the {n} holders of class {label} gets one of its {size}"
        require(n <= size, "pathological", "clients", clients, f"{allowed} samples")
        if n:
            row[holders] = size // n + (np.arange(n) < size % n)
    notes = note_unused("pathological", classes, sizes, counts)
    return Assignment(deal_by_class(labels, counts, generator(seed, "pathological samples")), notes)


def classes_by_block(clients: int, classes: int, width: int) -> np.ndarray:
    """Return whether client i holds each class, in block i mod B of B blocks, [clients, classes].

    Raises:
        DataError: If blocks would be of unequal size or have unequal numbers of holders.
    """
    is_valid = width <= classes and classes % width == 0
    allowed = f"a number that divides the {classes} classes, where they are dealt in blocks"
    require(is_valid, "pathological", "classes_per_client", width, allowed)
    number = classes // width
    allowed = f"a multiple of {number}, the number of blocks of {width} classes"
    require(clients % number == 0, "pathological", "clients", clients, allowed)
    block = np.arange(clients)[:, None] % number
    return np.asarray(np.arange(classes) // width == block)


def note_unused(
    scheme: str, classes: np.ndarray, sizes: np.ndarray, counts: np.ndarray
) -> list[str]:
    """Return and log a note about classes without a client in ``counts`` [classes, clients]."""
    lost = counts.sum(axis=1) == 0
    if not lost.any():
        return []
    names = ", ".join(str(label) for label in classes[lost])
    note = f"{scheme}: nobody holds class {names}; {sizes[lost].sum()} samples are unused"
    logger.warning("%s", note)
    return [note]
