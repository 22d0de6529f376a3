"""Random generators keyed by their purpose.

Random numbers come from generators keyed by (seed, purpose, client, round, ...), never from a
shared stream. Therefore a client's numbers do not depend on the backend, the order of clients or
the other participants, and a resumed run draws the same numbers as an undisturbed one.
"""

from __future__ import annotations

import hashlib

import numpy as np


def _sequence(seed: int, key: tuple[int | str, ...]) -> np.random.SeedSequence:
    text = "\0".join(map(str, key))
    words = np.frombuffer(hashlib.sha256(text.encode()).digest(), dtype=np.uint32)
    if 0 <= seed < 2**32:  # The same sequence as below, without lists of Python numbers.
        return np.random.SeedSequence(np.append(np.uint32(seed), words))
    return np.random.SeedSequence([seed, *(int(word) for word in words)])


def generator(seed: int, *key: int | str) -> np.random.Generator:
    """Return a generator (Philox) for one purpose: ``generator(seed, "batches", client, 3)``."""
    return np.random.Generator(np.random.Philox(_sequence(seed, key)))


def torch_seed(seed: int, *key: int | str) -> int:
    """Return a 63-bit seed for ``torch.manual_seed`` for one purpose."""
    return int(_sequence(seed, key).generate_state(1, np.uint64)[0] >> 1)
