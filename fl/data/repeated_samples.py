"""Test samples that are copies of training samples."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator

import numpy as np
import pandas as pd

from fl.data.prepared import Prepared

log = logging.getLogger(__name__)

PIECE_BYTES = 1 << 22
"""Bytes of samples that are compared at once."""


def repetition_notes(table: pd.DataFrame, prepared: Prepared) -> list[str]:
    """Return a note if all test samples are copies of training or validation samples.

    A copy has the same input ``x`` and the same label.

    Args:
        table: The partition.
        prepared: The data set.
    """
    is_test, samples = (table["split"] == "test").to_numpy(), table["sample"].to_numpy()
    test, further = samples[is_test], samples[~is_test]
    if not len(test) or not _are_copies(prepared, test, further):
        return []
    note = f"each of the {len(test)} test samples is a copy of a training or validation sample"
    log.warning("%s: %s", prepared.name, note)
    return [note]


def _are_copies(prepared: Prepared, rows: np.ndarray, further: np.ndarray) -> bool:
    """Whether each of some samples has a copy among further samples."""
    # Nearly always the first sample has none, and then no hash is computed.
    first = prepared.x[rows[0]]
    candidates = further[prepared.y[further] == prepared.y[rows[0]]]
    step = max(1, PIECE_BYTES // first.nbytes)
    pieces = (candidates[n : n + step] for n in range(0, len(candidates), step))
    if not any(_equal_rows(prepared.x[piece], first).any() for piece in pieces):
        return False
    copies = set(_sample_hashes(prepared, further))
    return all(sample in copies for sample in _sample_hashes(prepared, rows))


def _equal_rows(x: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Return whether each input ``[samples, ...]`` has the bytes of another one ``[...]``."""
    samples = np.ascontiguousarray(x).reshape(len(x), -1).view(np.uint8)
    return (samples == np.ascontiguousarray(row).reshape(-1).view(np.uint8)).all(axis=1)


def _sample_hashes(prepared: Prepared, rows: np.ndarray) -> Iterator[tuple[int, bytes]]:
    for row in rows:
        digest = hashlib.blake2b(prepared.x[row].tobytes(), digest_size=16).digest()
        yield int(prepared.y[row]), digest
