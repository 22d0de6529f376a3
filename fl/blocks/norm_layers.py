"""Normalisation layers of a model: for images [b, c, h, w], series [b, c, t] and vectors [b, c].

`batch`: over samples and space (Ioffe and Szegedy. ICML 2015). `group`: over space and a group of
channels of each sample (Wu and He. Group Normalization. ECCV 2018). `layer`: over space and all
channels of each sample (Ba, Kiros, Hinton. Layer Normalization. 2016). `instance`: over space, for
each channel of each sample (Ulyanov, Vedaldi, Lempitsky. Instance Normalization. 2016). All scale
and shift each channel. Only `batch` has running statistics, which FedBN and others keep local.
"""

from __future__ import annotations

import math
from typing import Literal

from torch import nn

Norm = Literal["batch", "group", "layer", "instance"]

GROUPS = 32
"""The paper's number of groups; there are fewer if it does not divide the channels."""


def norm_layer(norm: Norm, channels: int, dims: int = 2) -> nn.Module:
    """Return a layer for ``channels`` channels of images, of series or of vectors.

    Args:
        norm: The kind of layer.
        channels: Number of channels.
        dims: Number of dimensions after the channels: 2, 1 or 0.

    Raises:
        ValueError: For `instance` of vectors, whose channels are single numbers.
    """
    if norm == "instance" and not dims:
        raise ValueError("norm is instance, but channels of vectors are single numbers")
    if norm == "batch":
        return nn.BatchNorm2d(channels) if dims == 2 else nn.BatchNorm1d(channels)
    groups = {"group": math.gcd(GROUPS, channels), "layer": 1, "instance": channels}
    return nn.GroupNorm(groups[norm], channels)
