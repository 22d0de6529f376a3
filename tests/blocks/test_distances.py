"""Distances of rows that have a large part in common: NumPy's, in double precision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from fl.blocks.anchors import anchor_scores
from fl.blocks.distances import pairwise_distances
from fl.methods import knn_per

COMMON = 1000.0
"""What all features have in common; in float32, its square has a step of .06."""


def rows(count: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(count, 8))).float() + COMMON


def exact(x: Tensor, y: Tensor) -> np.ndarray:
    return np.square(x.double().numpy()[:, None] - y.double().numpy()).sum(-1)


@pytest.mark.parametrize("count", [5, 40])
def test_distances_have_the_digits_of_the_differences(count: int) -> None:
    x, y = rows(count, 0), rows(30, 1)
    torch.testing.assert_close(
        pairwise_distances(x, y).double(), torch.from_numpy(exact(x, y)), rtol=1e-5, atol=0
    )
    stacked = torch.func.vmap(pairwise_distances)(x[None], y[None])
    assert torch.equal(stacked[0], pairwise_distances(x, y))


def nearest_prototypes(x: Tensor, y: Tensor) -> Tensor:
    return anchor_scores(x, y).argmax(1)


def nearest_neighbours(x: Tensor, y: Tensor) -> Tensor:
    memory = {"features": y, "y": torch.arange(len(y))}
    return knn_per.KNNPer(k=1).neighbours(memory, x, len(y)).argmax(1)


@pytest.mark.parametrize("nearest", [nearest_prototypes, nearest_neighbours])
def test_the_nearest_is_the_nearest(nearest: Callable[[Tensor, Tensor], Tensor]) -> None:
    x, y = rows(200, 2), rows(30, 3)
    expected = torch.from_numpy(exact(x, y).argmin(1))
    assert torch.equal(nearest(x, y), expected)
    by_product = torch.cdist(x, y, compute_mode="use_mm_for_euclid_dist").argmin(1)
    assert not torch.equal(by_product, expected), "products of matrices lose it"
