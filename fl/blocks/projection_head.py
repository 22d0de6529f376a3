"""Projection heads: layers between the features of a model and its classifier."""

from __future__ import annotations

from torch import nn


def classifier_layers(width: int, classes: int, projection: int | None) -> list[nn.Module]:
    """Return layers from [b, width] to [b, classes]: one, or with a projection three linear ones.

    The projection head is that of Li, He, Song (MOON, CVPR 2021): a hidden layer as wide as the
    features, with ReLU, and then ``projection`` numbers. These go into the classifier as they are,
    and methods take them as a sample's features.
    """
    if projection is None:
        return [nn.Linear(width, classes)]
    return [
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, projection),
        nn.Linear(projection, classes),
    ]
