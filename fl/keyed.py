"""Random numbers inside a step: a pure function of a key, for layers such as dropout.

A generator cannot run inside `torch.func.vmap`, and one shared by clients would make a client's
numbers depend on who else takes part. Here a number is a hash of (key of the sample, stream,
counter), so that it is the same in every backend, on every device and after a resume.

The hash is the finaliser of SplitMix64: G. L. Steele, D. Lea, C. H. Flood. Fast Splittable
Pseudorandom Number Generators. OOPSLA 2014.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_STREAM = 0xD1B54A32D192ED03 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def uniform(key: Tensor, stream: int, shape: tuple[int, ...] = ()) -> Tensor:
    """Numbers in [0, 1), float64 [..., *shape], for keys int64 [...].

    One key may be asked for several streams; they are independent of each other.
    """
    count = torch.arange(math.prod(shape), device=key.device).reshape(shape)
    offset = (stream * _STREAM + 2**63) % 2**64 - 2**63
    base = _mix(key + offset).reshape(*key.shape, *[1] * len(shape))
    return _shift(_mix(base + count * _GOLDEN), 11).double() * 2.0**-53


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * _FIRST
    z = (z ^ _shift(z, 27)) * _SECOND
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """z >> bits without its sign: PyTorch's shift of int64 carries the sign along."""
    return (z >> bits) & (2 ** (64 - bits) - 1)
