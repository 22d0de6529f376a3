"""Normal random numbers by keys.

G. E. P. Box, M. E. Muller. A Note on the Generation of Random Normal Deviates. Annals of
Mathematical Statistics 29, 1958.
"""

from __future__ import annotations

import math

from torch import Tensor

from fl.api import keyed


def gaussian(key: Tensor, stream: int, shape: tuple[int, ...] = ()) -> Tensor:
    """Numbers of a normal distribution with mean 0 and deviation 1, float64 [..., *shape].

    Args:
        key: int64 [...].
    """
    angle = keyed.uniform(keyed.derived(key, stream), 0, shape) * 2 * math.pi
    length = (-2 * (1 - keyed.uniform(keyed.derived(key, stream), 1, shape)).log()).sqrt()
    return length * angle.cos()
