"""Random numbers inside a training step: a pure function of a key, for layers such as dropout.

A generator cannot run inside `torch.func.vmap`, and if clients shared one, a client's numbers would
depend on who else takes part. Here a number is a hash of (key of the sample, stream, counter), so
that it is the same in every backend, on every device and after a resume.

The hash is the finaliser of SplitMix64: G. L. Steele, D. Lea, C. H. Flood. Fast Splittable
Pseudorandom Number Generators. OOPSLA 2014.
"""

from __future__ import annotations

import hashlib
import math
from functools import partial

import torch
from torch import Tensor

from fl.pytorch import folding

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_STREAM = 0xD1B54A32D192ED03 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def uniform(key: Tensor, stream: int, shape: tuple[int, ...] = ()) -> Tensor:
    """Draw numbers in [0, 1); the streams of one key are independent of each other.

    Args:
        key: Keys, int64 [...].
        stream: Number of the stream.
        shape: Shape of the numbers of each key.

    Returns:
        Numbers, float64 [..., *shape].
    """
    return folding.call_on_stacks(partial(_uniform, stream, shape), key)


def _uniform(stream: int, shape: tuple[int, ...], key: Tensor) -> Tensor:
    count = torch.arange(math.prod(shape), device=key.device).reshape(shape)
    base = _derived(stream, key).reshape((*key.shape, *[1] * len(shape)))
    return _shift(_mix(base + count * _GOLDEN), 11).double() * 2.0**-53


def derive_keys(key: Tensor, stream: int) -> Tensor:
    """Derive keys for a stream; their numbers are independent of those of ``key``.

    Args:
        key: Keys, int64 [...].
        stream: Number of the stream.

    Returns:
        Derived keys, int64 [...].
    """
    return folding.call_on_stacks(partial(_derived, stream), key)


def _derived(stream: int, key: Tensor) -> Tensor:
    offset = (stream * _STREAM + 2**63) % 2**64 - 2**63
    return _mix(key + offset)


def stream_number(name: str) -> int:
    """Return the number of a named stream; it is far from the small numbers of unnamed streams."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


FAILURE_PROBABILITY = 1e-12
"""Probability that `beta` accepts no try. Even then it returns a number in [0, 1]."""


def beta(key: Tensor, stream: int, a: float, b: float, shape: tuple[int, ...] = ()) -> Tensor:
    """Draw numbers from the distribution Beta(a, b) by rejection.

    The number of tries grows with Gamma(1 + a + b) / (Gamma(1 + a) Gamma(1 + b)): 7 for a = b =
    0.1, 40 for 1, 152 for 2.

    M. D. Jöhnk. Erzeugung von betaverteilten und gammaverteilten Zufallszahlen. Metrika 8, 1964: x
    = u^(1/a) and y = v^(1/b) for uniform u and v; if x + y <= 1, then x / (x + y) is the number.

    Args:
        key: Keys, int64 [...].
        stream: Number of the stream.
        a: First parameter, > 0.
        b: Second parameter, > 0.
        shape: Shape of the numbers of each key.

    Returns:
        Numbers, float64 [..., *shape].
    """
    accepted = math.exp(math.lgamma(1 + a) + math.lgamma(1 + b) - math.lgamma(1 + a + b))
    tries = math.ceil(math.log(FAILURE_PROBABILITY) / math.log1p(-accepted))
    # Logarithms, because u^(1/a) underflows even at a = 0.01.
    x, y = torch.log1p(-uniform(key, stream, (2, *shape, tries))).movedim(key.dim(), 0)
    x, y = x / a, y / b
    fits = torch.logaddexp(x, y) <= 0
    first = (fits * torch.arange(tries, 0, -1, device=key.device)).argmax(-1, keepdim=True)
    return torch.sigmoid(x - y).gather(-1, first).squeeze(-1)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * _FIRST
    z = (z ^ _shift(z, 27)) * _SECOND
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros; PyTorch's shift of int64 fills with the sign."""
    return (z >> bits) & (2 ** (64 - bits) - 1)
