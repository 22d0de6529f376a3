"""The lists by which FedBN's releases divide a domain: paths of images and names of their classes.

X. Li, M. Jiang, X. Zhang, M. Kamp and Q. Dou. FedBN: Federated Learning on Non-IID Features via
Local Batch Normalization. ICLR 2021.

A list is a pickle, ``<domain>_train.pkl`` or ``<domain>_test.pkl``, of two sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fl.base.errors import DataError, wrap_read_errors
from fl.data import counts, per_domain, pickles
from fl.data.archives import entries, name_of
from fl.data.placing import TEST, TRAIN, VAL, known


@dataclass(frozen=True)
class Samples:
    """Where the images of a data set lie, and what they are; all ``[samples]``."""

    path: tuple[str, ...]
    y: np.ndarray
    domain: np.ndarray
    split: np.ndarray

    def rows(self, domain: int | None = None) -> dict[str, list[int]]:
        """The rows of each path, of one domain or of all; a list may name a path twice."""
        by_path: dict[str, list[int]] = {}
        for row, path in enumerate(self.path):
            if domain is None or self.domain[row] == domain:
                by_path.setdefault(path, []).append(row)
        return by_path

    def counts(self, domains: Sequence[str]) -> dict[str, int]:
        """How many samples each domain has in each split, by ``"<domain> <split>"``."""
        return per_domain.counted(self.domain, self.split, domains)


def divide(
    lists: Mapping[str, tuple[list[str], list[int]]],
    domains: Sequence[str],
    ends: Callable[[int], tuple[int, int]],
) -> Samples:
    """The samples of all domains, in order: each one's train, val and test samples.

    Args:
        ends: Of a training list of ``n``, how many at its start train and how many at its end
            validate; what lies between is left out.
    """
    path: list[str] = []
    parts = []
    for d, name in enumerate(domains):
        (paths, y), held_out = lists[f"{name}_train.pkl"], lists[f"{name}_test.pkl"]
        train, val = ends(len(paths))
        rest = len(paths) - val
        path += [*paths[:train], *paths[rest:], *held_out[0]]
        y = [*y[:train], *y[rest:], *held_out[1]]
        split = np.repeat([TRAIN, VAL, TEST], [train, val, len(held_out[0])])
        parts.append(np.stack([y, np.full(len(y), d), split]))
    y, domain, split = np.concatenate(parts, axis=1)
    return Samples(tuple(path), y, domain, split)


def read(
    archive: Path, domains: Sequence[str], classes: Sequence[str]
) -> dict[str, tuple[list[str], list[int]]]:
    """The lists in ``archive``: ``{"<domain>_train.pkl": (paths, labels), ...}``.

    Raises:
        DataError: If a list is missing, or is no list of paths and known classes.
    """
    wanted = {f"{domain}_{split}.pkl": None for domain in domains for split in ("train", "test")}
    lists = {
        known(name, wanted): _list(pickles.load(stream), name_of(stream), classes)
        for name, stream in entries(archive, lambda name: known(name, wanted) is not None)
    }
    counts.lacking(archive, (name for name in wanted if name not in lists))
    return {str(name): value for name, value in lists.items()}


def _list(loaded: Any, name: str, classes: Sequence[str]) -> tuple[list[str], list[int]]:
    with wrap_read_errors(name, "is no pair of paths and class names"):
        paths, labels = (
            [item.decode() if isinstance(item, bytes) else str(item) for item in items]
            for items in loaded
        )
    for label in set(labels) - set(classes):
        raise DataError(f"{name}: has the class {label!r}. Allowed: {', '.join(classes)}")
    if len(paths) != len(labels):
        raise DataError(f"{name}: has {len(paths)} paths but {len(labels)} labels")
    return paths, [classes.index(label) for label in labels]
