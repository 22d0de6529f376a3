"""Normal random numbers inside a step, as a pure function of keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fl import keyed


def normal(key: Tensor, stream: int, shape: tuple[int, ...] = ()) -> Tensor:
    """Standard normal numbers, float64 [..., *shape], for keys int64 [...], see `fl.keyed`.

    G. E. P. Box, M. E. Muller. A Note on the Generation of Random Normal Deviates. Annals of
    Mathematical Statistics 29 (1958): sqrt(-2 log u) cos(2 pi v) for uniform u and v.
    """
    u, v = keyed.uniform(key, stream, (2, *shape)).movedim(key.dim(), 0)
    return (-2 * torch.log1p(-u)).sqrt() * torch.cos(2 * math.pi * v)
