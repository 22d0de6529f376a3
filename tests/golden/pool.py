"""Worlds measured by one or several processes."""

from __future__ import annotations

import multiprocessing
import traceback
import warnings
from collections.abc import Iterator, Sequence

import torch

from golden import measure
from golden.measure import Fingerprint


def measured(names: Sequence[str], processes: int) -> Iterator[tuple[str, Fingerprint]]:
    """The fingerprints of worlds, in their order."""
    # The longest first, so that no process waits for another at the end.
    first = sorted(names, key=lambda name: not name.startswith("model"))
    if processes == 1:  # Which saves the imports of another one.
        _begin()
        found = dict(map(_measured, first))
    else:
        with multiprocessing.get_context("spawn").Pool(processes, _begin) as workers:
            found = dict(workers.imap_unordered(_measured, first, chunksize=4))
    for name in names:
        yield name, found[name]


def _begin() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def _measured(name: str) -> tuple[str, Fingerprint]:
    try:
        return name, measure.fingerprint(name)
    except Exception:
        told = traceback.format_exc(limit=-3)
        return name, {"world": measure.definition(name), "text": told, "numbers": []}
