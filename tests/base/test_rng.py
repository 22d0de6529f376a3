from __future__ import annotations

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from planning import ROOT

from fl.base import rng

KEYS = [
    ("batches", 0, 1),
    ("batches", 1, 0),
    ("batches", 0, 2),
    ("batches", 10),
    ("batches", 1, 0, 0),
    ("participants", 0, 1),
    ("batches1", 0),
    ("init",),
    (),
]
PRINT = (
    "from fl.base import rng;"
    "print(rng.generator(3, 'batches', 2, 7).integers(2**62, size=3).tolist(),"
    " rng.torch_seed(3, 'init'))"
)
PINNED = "[3579057044254489967, 2443409064475713496, 3281131437964892347] 2065982085263374639"


def draws(seed: int, *key: int | str, size: int = 2000) -> np.ndarray:
    return rng.generator(seed, *key).random(size)


def test_draws_of_different_keys_are_independent() -> None:
    streams = [draws(seed, *key) for seed in (0, 1) for key in KEYS]
    for a, b in itertools.combinations(streams, 2):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.12
        assert not set(a) & set(b)


def test_the_parts_of_a_key_do_not_run_together() -> None:
    assert not np.array_equal(draws(0, "a", "bc"), draws(0, "ab", "c"))
    assert not np.array_equal(draws(0, "a", 12), draws(0, "a", 1, 2))
    assert not np.array_equal(draws(1, "a"), draws(0, 1, "a"))


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_values_are_the_same_in_every_process_and_version(hash_seed: str) -> None:
    """Pinned, because stored results and partitions rest on them."""
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    out = subprocess.run(
        [sys.executable, "-c", PRINT], env=env, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == PINNED
