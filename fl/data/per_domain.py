"""How many samples of each domain are in each split: as they were read, and as published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fl.data.placing import TEST, TRAIN, VAL

CODES = {"train": TRAIN, "val": VAL, "test": TEST}


def counted(
    domain: np.ndarray, split: np.ndarray, domains: Sequence[str], parts: Iterable[str] = CODES
) -> dict[str, int]:
    """By ``"<domain> <part>"``, of ``domain`` and ``split`` ``[samples]``."""
    return {
        f"{name} {split_name}": int(np.sum((domain == d) & (split == CODES[split_name])))
        for d, name in enumerate(domains)
        for split_name in parts
    }


def stated(published: Mapping[str, Sequence[int]], parts: Iterable[str] = CODES) -> dict[str, int]:
    """Published sizes, as `counted` names them; one of each part for each domain."""
    return {
        f"{name} {split_name}": size
        for name, sizes in published.items()
        for split_name, size in zip(parts, sizes, strict=True)
    }
