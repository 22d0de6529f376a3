"""A projection head: what stands between the features of a model and its classifier."""

from __future__ import annotations

from torch import nn


def classifier_layers(width: int, classes: int, projection: int | None) -> list[nn.Module]:
    """Layers from [b, width] to [b, classes]: one, or with a projection three linear ones.

    The head of Li, He, Song (MOON, CVPR 2021): a hidden layer as wide as the features, with ReLU,
    and then ``projection`` numbers. These go into the classifier as they are, and so are what
    methods take as a sample's features.
    """
    if projection is None:
        return [nn.Linear(width, classes)]
    return [
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, projection),
        nn.Linear(projection, classes),
    ]
