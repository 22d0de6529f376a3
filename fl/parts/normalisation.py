"""Normalisation layers, chosen by a model's key, for images [b, c, h, w] and vectors [b, c].

`batch`: over samples and space (Ioffe and Szegedy. ICML 2015). `group`: over space and a group of
channels of each sample (Wu and He. Group Normalization. ECCV 2018). `layer`: over space and all
channels of each sample (Ba, Kiros, Hinton. Layer Normalization. 2016). All scale and shift each
channel. Only `batch` has running statistics, which FedBN and others keep local.
"""

from __future__ import annotations

import math
from typing import Literal

from torch import nn

Norm = Literal["batch", "group", "layer"]

GROUPS = 32
"""The paper's; fewer where that does not divide the channels."""


def normalisation(norm: Norm, channels: int, dims: int = 2) -> nn.Module:
    """A layer for that many channels, of images (``dims`` 2) or of vectors (``dims`` 0)."""
    if norm == "batch":
        return nn.BatchNorm2d(channels) if dims else nn.BatchNorm1d(channels)
    return nn.GroupNorm(math.gcd(GROUPS, channels) if norm == "group" else 1, channels)
