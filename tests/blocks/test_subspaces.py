from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import Tensor

from fl.blocks.subspaces import (
    complementarity,
    disguise_directions,
    feature_moments,
    principal_directions,
)

DRAW = np.random.default_rng(8)
X = DRAW.normal(size=(3, 40, 6)) * np.array([5.0, 1, 0.2, 3, 0.7, 2]) + DRAW.normal(size=(3, 1, 6))


def directions(x: np.ndarray | Tensor, k: int, centred: bool = True) -> Tensor:
    x = torch.as_tensor(x)
    seen = feature_moments(x, {"weight": torch.ones(len(x))})
    mean = seen["first"] / seen["count"] * float(centred)
    return principal_directions(seen["second"], mean, seen["count"], k)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_directions_are_those_of_a_principal_component_analysis(k: int) -> None:
    for x in X:
        found = directions(x, k)
        expected = PCA(k, svd_solver="full").fit(x).components_
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)
        np.testing.assert_allclose(found @ found.T, np.eye(k), rtol=0, atol=1e-13)


def test_without_centring_they_are_right_singular_vectors() -> None:
    found = directions(X[0] + 10, 2, centred=False)
    _, _, right = np.linalg.svd(X[0] + 10)
    np.testing.assert_allclose((found * torch.from_numpy(right[:2])).sum(1).abs(), 1, atol=1e-12)


def test_moments_leave_out_what_weighs_nothing() -> None:
    weight = torch.ones(40)
    weight[20:] = 0
    found = feature_moments(torch.from_numpy(X[0]), {"weight": weight})
    np.testing.assert_allclose(found["second"], X[0, :20].T @ X[0, :20], rtol=1e-13)
    np.testing.assert_allclose(found["first"], X[0, :20].sum(0), rtol=1e-12)
    assert found["count"] == 20
    weight[:20] = torch.linspace(0.5, 3.0, 20)
    found = feature_moments(torch.from_numpy(X[0]), {"weight": weight})
    weighed = X[0, :20] * np.linspace(0.5, 3.0, 20)[:, None]
    np.testing.assert_allclose(found["second"], weighed.T @ X[0, :20], rtol=1e-6)
    np.testing.assert_allclose(found["first"], weighed.sum(0), rtol=1e-5)


def test_directions_without_variance_do_not_hang_on_rounding() -> None:
    """Two samples have one direction; the others are the same for every order of the samples."""
    x = np.array([[1.0, 2.0, 0.0, 0.0, 0.1], [3.0, 1.0, 0.0, 0.0, 0.7]]).repeat(11, 0)
    one, other = directions(x, 3), directions(x[np.random.default_rng(0).permutation(22)], 3)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-8)


def test_a_client_that_has_diverged_has_no_directions_and_no_angles() -> None:
    broken = torch.from_numpy(X[0]).clone()
    broken[0, 0] = torch.inf
    bases = torch.stack([directions(broken, 2), directions(X[1], 2), directions(X[2], 2)])
    assert bases[0].isnan().all()
    for method in ("svd", "greedy"):
        found = complementarity(bases, method)
        assert found[0].isnan().all()
        assert found[:, 0].isnan().all()
        assert found[1:, 1:].isfinite().all()


def turned(angles: list[float]) -> Tensor:
    """A plane of R^4 at these principal angles to the one of the first two axes."""
    rows = torch.zeros(2, 4, dtype=torch.float64)
    for i, angle in enumerate(angles):
        rows[i, i], rows[i, i + 2] = math.cos(angle), math.sin(angle)
    return rows


@pytest.mark.parametrize("method", ["svd", "greedy"])
def test_complementarity_is_the_cosine_of_the_mean_angle(method: str) -> None:
    bases = torch.stack([turned([0.0, 0.0]), turned([0.3, 1.1]), turned([math.pi / 2] * 2)])
    found = complementarity(bases, method)
    expected = [[1, math.cos(0.7), 0], [math.cos(0.7), 1, math.cos(math.pi / 2 - 0.7)]]
    np.testing.assert_allclose(found[:2], expected, rtol=0, atol=1e-15)
    assert torch.equal(found, found.T)


def test_principal_angles_belong_to_the_subspace_and_greedy_ones_to_the_basis() -> None:
    bases = torch.stack([turned([0.0, 0.0]), turned([0.3, 1.1])])
    turn = torch.tensor([[0.6, 0.8], [-0.8, 0.6]], dtype=torch.float64)
    other = torch.stack([bases[0], turn @ bases[1]])
    torch.testing.assert_close(complementarity(other), complementarity(bases), rtol=0, atol=1e-14)
    # Cosines .6 cos .3, .8 cos 1.1, -.8 cos .3, .6 cos 1.1: the first takes the last with it.
    angles = math.acos(0.6 * math.cos(0.3)) + math.acos(0.6 * math.cos(1.1))
    found = float(complementarity(other, "greedy")[0, 1])
    assert found == pytest.approx(math.cos(angles / 2), abs=1e-14)


def test_small_angles_keep_their_digits() -> None:
    """Cosines of 1e-9 and of 0 are the same number."""
    bases = torch.stack([turned([0.0, 0.0]), turned([1e-9, 2.0])])
    angle = math.acos(float(complementarity(bases)[0, 1])) * 2
    assert angle == pytest.approx(1e-9 + math.pi - 2.0, abs=1e-15)


def cosine_of_kept(bases: Tensor, features: tuple[int, ...]) -> float:
    """Of the mean principal angle between two planes, of some features alone, by numpy."""
    spans = [np.linalg.qr(np.asarray(rows)[:, features].T)[0] for rows in bases]
    cosines = np.linalg.svd(spans[0].T @ spans[1])[1].clip(max=1)
    return float(np.cos(np.arccos(cosines).mean()))


def test_a_crop_gives_the_angles_of_some_features_that_are_the_same_for_both() -> None:
    bases = torch.stack([directions(x, 2) for x in X[:2]])
    kept = disguise_directions(bases, torch.tensor([5, 3]), 0.0, 0.5, seed=4, number=2)
    assert kept.shape == (2, 2, 3)
    np.testing.assert_allclose(kept @ kept.mT, np.eye(2)[None].repeat(2, 0), atol=1e-13)
    angle = float(complementarity(kept)[0, 1])
    every = [cosine_of_kept(bases, some) for some in itertools.combinations(range(6), 3)]
    # NumPy loses half of the digits of an angle whose cosine is near 1.
    assert sum(abs(angle - cosine) < 1e-8 for cosine in every) == 1


def test_noise_on_directions_is_a_clients_own_and_as_large_as_said() -> None:
    bases = torch.zeros(400, 1, 64, dtype=torch.float64)
    bases[:, 0, 7] = 1
    noisy = disguise_directions(bases, torch.arange(400), 0.5, 1.0, seed=0, number=1)
    # A row of length 1 plus noise of length .5, turned to length 1: cosines of 1 / sqrt(1.25).
    assert float(noisy[:, 0, 7].mean()) == pytest.approx(1.25**-0.5, abs=0.01)
    few = disguise_directions(bases[:2], torch.tensor([9, 2]), 0.5, 1.0, seed=0, number=1)
    assert torch.equal(few, noisy[[9, 2]])
    assert not torch.equal(
        few, disguise_directions(bases[:2], torch.tensor([9, 2]), 0.5, 1.0, 0, 2)
    )


def test_what_is_not_disguised_stays_as_it_is() -> None:
    bases = torch.stack([directions(x, 3) for x in X])
    same = disguise_directions(bases, torch.arange(3), 0.0, 1.0, seed=0, number=1)
    torch.testing.assert_close(same, bases, rtol=0, atol=1e-13)
