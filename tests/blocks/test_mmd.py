"""Discrepancies against loops over pairs, weights against a solver, a deep kernel written out."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, vmap

from fl.api import trees
from fl.blocks.distances import three_distances
from fl.blocks.mmd import (
    GRID,
    DeepKernel,
    kernel_covariance,
    kernel_mmd2,
    kernel_statistics,
    mk_mmd2,
    optimal_kernel_weights,
    optimal_kernel_weights_cvxpy,
)

ODD = (0.3, 1.7, 0.6, 0.3)


def samples(*shape: int, seed: int = 0, apart: float = 0.5) -> tuple[Tensor, Tensor]:
    """x, and y that has moved away from it by a common and an own amount."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=shape)
    y = x + apart * draw.normal(size=shape) + apart * draw.normal(size=shape[-1])
    return torch.from_numpy(x), torch.from_numpy(y)


def by_pairs(
    x: Tensor, y: Tensor, gammas: Any, convention: str = "multiply"
) -> tuple[np.ndarray, np.ndarray]:
    """h(s, t) of each kernel, [r, n, n], and Q, pair by pair."""
    a, b = x.numpy(), y.numpy()
    n = len(a)
    h = np.empty((len(gammas), n, n))
    for j, gamma in enumerate(gammas):
        rate = gamma if convention == "multiply" else 1 / gamma

        def k(u: np.ndarray, v: np.ndarray, rate: float = rate) -> float:
            return float(np.exp(-rate * ((u - v) ** 2).sum()))

        for s in range(n):
            for t in range(n):
                h[j, s, t] = k(a[s], a[t]) + k(b[s], b[t]) - k(a[s], b[t]) - k(b[s], a[t])
    m = h.mean(axis=(1, 2))
    q = np.zeros((len(gammas), len(gammas)))
    for i in range(len(gammas)):
        for j in range(len(gammas)):
            q[i, j] = ((h[i] - m[i]) * (h[j] - m[j])).sum() / max(n * n - 1, 1)
    return h, q


def off_diagonal_mean(h: np.ndarray) -> np.ndarray:
    n = h.shape[-1]
    return np.asarray((h.sum(axis=(-2, -1)) - np.trace(h, axis1=-2, axis2=-1)) / (n * (n - 1)))


@pytest.mark.parametrize("apart", [1e-4, 0.5, 3.0])
@pytest.mark.parametrize("convention", ["multiply", "divide"])
@pytest.mark.parametrize("gammas", [GRID, ODD, (0.8,)], ids=["grid", "odd", "one"])
def test_mmd2_and_covariance_are_those_over_pairs(
    gammas: Any, convention: Any, apart: float
) -> None:
    x, y = samples(7, 3, apart=apart)
    h, q = by_pairs(x, y, gammas, convention)
    biased = kernel_mmd2(x, y, gammas, convention=convention)
    unbiased = kernel_mmd2(x, y, gammas, convention=convention, biased=False)
    covariance = kernel_covariance(x, y, gammas, convention=convention)
    np.testing.assert_allclose(biased, h.mean(axis=(1, 2)), rtol=0, atol=1e-13)
    np.testing.assert_allclose(unbiased, off_diagonal_mean(h), rtol=0, atol=1e-13)
    np.testing.assert_allclose(covariance, q, rtol=0, atol=1e-13)
    assert biased.dtype == torch.float64
    for flag, alone in ((True, biased), (False, unbiased)):
        mmd2, again = kernel_statistics(x, y, gammas, convention=convention, biased=flag)
        torch.testing.assert_close(mmd2, alone, rtol=0, atol=1e-14)
        assert torch.equal(again, covariance)


def test_many_rows_are_taken_in_pieces() -> None:
    x, y = samples(2, 150, 4, seed=1)
    mmd2, covariance = kernel_statistics(x, y, GRID, biased=False)
    for k in range(2):
        pairs = [(x[k], x[k]), (y[k], y[k]), (x[k], y[k]), (y[k], x[k])]
        xx, yy, xy, yx = (torch.cdist(a, b).square() for a, b in pairs)
        h = torch.stack([(-g * xx).exp() + (-g * yy).exp() for g in GRID])
        h -= torch.stack([(-g * xy).exp() + (-g * yx).exp() for g in GRID])
        np.testing.assert_allclose(mmd2[k], off_diagonal_mean(h.numpy()), rtol=0, atol=1e-12)
        # Which divides by one less than the number of pairs, as Q does.
        expected = torch.cov(h.flatten(1))
        torch.testing.assert_close(covariance[k], expected, rtol=0, atol=1e-12)


def test_gaussians_have_the_mmd_that_is_known() -> None:
    """N(0, 1) and N(a, 1) under exp(-g |u - v|^2), with w = 1 + 4 g.

    2 (1 - exp(-g a^2 / w)) / sqrt(w); samples are quantiles, which leaves no luck in it.
    """
    a, g, n = 1.5, np.array([0.1, 0.5, 2.0]), 1000
    quantiles = [NormalDist().inv_cdf((i + 0.5) / n) for i in range(n)]
    x = torch.tensor(quantiles, dtype=torch.float64).unsqueeze(-1)
    w = 1 + 4 * g
    expected = 2 * (1 - np.exp(-g * a**2 / w)) / np.sqrt(w)
    found = kernel_mmd2(x, x.flip(0) + a, g.tolist())
    np.testing.assert_allclose(found, expected, rtol=0.01)


@pytest.mark.parametrize("biased", [True, False])
def test_gradients_are_right_and_finite_where_rows_coincide(biased: bool) -> None:
    x, y = samples(5, 3, seed=5)
    x[1], y[2], y[3] = x[0], x[2], x[0]
    weights = optimal_kernel_weights(*kernel_statistics(x, y, GRID), 1e-3)

    def discrepancy(a: Tensor, b: Tensor) -> Tensor:
        return mk_mmd2(a, b, GRID, weights, biased=biased)

    assert gradcheck(discrepancy, (x.clone().requires_grad_(), y.clone().requires_grad_()))
    same = grad(lambda a: discrepancy(a, x))(x)
    assert same.isfinite().all()
    torch.testing.assert_close(same, torch.zeros_like(x) if biased else same, rtol=0, atol=1e-15)
    mapped = vmap(grad(discrepancy))(x.expand(2, -1, -1), y.expand(2, -1, -1))
    torch.testing.assert_close(mapped[1], grad(discrepancy)(x, y), rtol=0, atol=1e-15)


def test_equal_samples_are_at_distance_zero_to_the_bit() -> None:
    x, _ = samples(4, 70, 6)
    for dtype in (torch.float32, torch.float64):
        mmd2, covariance = kernel_statistics(x.to(dtype), x.to(dtype), GRID)
        assert not mmd2.any() and not covariance.any()
        weights = optimal_kernel_weights(mmd2, covariance, 1e-3)
        assert weights.dtype == dtype
        assert weights.tolist() == [[1.0] + [0.0] * 18] * 4


def test_a_single_row_has_no_covariance() -> None:
    x, y = samples(1, 4)
    mmd2, covariance = kernel_statistics(x, y, GRID)
    expected = 2 - 2 * np.exp(-np.array(GRID) * float((x - y).square().sum()))
    np.testing.assert_allclose(mmd2, expected, rtol=0, atol=1e-14)
    assert not covariance.any()
    assert not kernel_mmd2(x, y, GRID, biased=False).any()
    assert not kernel_statistics(x, y, GRID, biased=False)[0].any()
    weights = optimal_kernel_weights(mmd2, covariance, 1e-3)
    torch.testing.assert_close(weights, mmd2 / mmd2.sum(), rtol=0, atol=1e-12)


def problems(kind: str, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """m and Q of some kind: of kernels on samples, or of no samples at all."""
    draw = np.random.default_rng(seed)
    if kind in ("random", "of low rank"):
        width = 40 if kind == "random" else 4
        factor = torch.from_numpy(draw.normal(size=(count, 19, width)))
        return torch.from_numpy(draw.normal(size=(count, 19))), factor @ factor.mT
    x = torch.from_numpy(draw.normal(size=(count, 12, 5)))
    if kind == "unbiased":
        return kernel_statistics(x, torch.from_numpy(draw.normal(size=x.shape)), GRID, biased=False)
    apart = torch.from_numpy(10 ** draw.uniform(-3, 0.3, size=(count, 1, 1)))
    y = x + apart * torch.from_numpy(draw.normal(size=x.shape))
    y = y + apart * torch.from_numpy(draw.normal(size=(count, 1, 5)))
    if kind == "normalised":
        x, y = (torch.nn.functional.normalize(t, dim=-1) for t in (x, y))
    return kernel_statistics(x, y, GRID)


KINDS = ["samples", "normalised", "unbiased", "random", "of low rank"]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_a_solver(kind: str) -> None:
    mmd2, covariance = problems(kind, 8)
    weights = optimal_kernel_weights(mmd2, covariance, 1e-3)
    expected = optimal_kernel_weights_cvxpy(mmd2, covariance, 1e-3)
    np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=0, atol=1e-14)
    assert (weights >= 0).all()


@pytest.mark.parametrize("times", [1e-9, 1e-4, 1e6])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_have_no_unit(kind: str, times: float) -> None:
    """Samples that nearly coincide have tiny discrepancies, and weights nevertheless."""
    mmd2, covariance = problems(kind, 40, seed=2)
    expected = optimal_kernel_weights(mmd2, covariance, 1e-3)
    found = optimal_kernel_weights(times * mmd2, covariance, 1e-3)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("ridge", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_meet_the_conditions_of_the_optimum(kind: str, ridge: float) -> None:
    """A b >= nu m and b >= 0, with equality in one of the two for each kernel, nu = b'A b."""
    mmd2, covariance = problems(kind, 400, seed=1)
    some = (mmd2 > 0).any(-1)
    mmd2, covariance = mmd2[some], covariance[some]
    b = optimal_kernel_weights(mmd2, covariance, ridge)
    b = b / (b * mmd2).sum(-1, keepdim=True)
    a = 2 * covariance + ridge * torch.eye(19, dtype=b.dtype)
    unit = a.diagonal(dim1=-2, dim2=-1).sqrt()
    slope = (a @ b.unsqueeze(-1)).squeeze(-1)
    nu = (b * slope).sum(-1, keepdim=True)
    slack = (slope - nu * mmd2) / unit
    scale = (nu * mmd2 / unit).abs().amax(-1, keepdim=True)
    assert (slack / scale).min() > -1e-8
    share = b * unit / (b * unit).sum(-1, keepdim=True)
    assert (share * slack / scale).abs().max() < 1e-8


def test_two_kernels_have_weights_that_are_known() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    found = optimal_kernel_weights(torch.tensor([3.0, 1.0]).double(), eye, 1e-3)
    torch.testing.assert_close(found, torch.tensor([0.75, 0.25]).double(), rtol=0, atol=1e-14)
    found = optimal_kernel_weights(torch.tensor([1.0, -1.0]).double(), eye, 1e-3)
    assert found.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("twin", [optimal_kernel_weights, optimal_kernel_weights_cvxpy])
def test_without_a_positive_entry_one_kernel_is_chosen(twin: Any) -> None:
    covariance = torch.diag(torch.tensor([1.0, 4.0, 0.1])).double()
    # -1/2, -1/8 and -0.05/0.2, but for the ridge.
    found = twin(torch.tensor([-1.0, -1.0, -0.05]).double(), covariance, 1e-3)
    assert found.tolist() == [0.0, 1.0, 0.0]
    assert twin(torch.zeros(3).double(), covariance, 1e-3).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("location", ["mmd2", "covariance"])
def test_what_is_not_finite_gets_equal_weights_and_spoils_no_other(
    location: str, bad: float
) -> None:
    mmd2, covariance = problems("samples", 3)
    expected = optimal_kernel_weights(mmd2, covariance, 1e-3)
    (mmd2 if location == "mmd2" else covariance)[1, 4] = bad
    found = optimal_kernel_weights(mmd2, covariance, 1e-3)
    np.testing.assert_allclose(found[1], 1 / 19, rtol=0, atol=1e-15)
    torch.testing.assert_close(found[[0, 2]], expected[[0, 2]], rtol=0, atol=1e-12)


def written_out(params: Any, form: str, x: Tensor, y: Tensor) -> tuple[float, float]:
    """MMD-D^2 and the ratio of equation 3, pair by pair."""
    layers = [{k: v.numpy() for k, v in layer.items()} for layer in params["featurizer"].values()]

    def phi(u: np.ndarray) -> np.ndarray:
        for i, layer in enumerate(layers):
            u = layer["weight"] @ u + layer["bias"]
            u = np.log1p(np.exp(u)) if i < 3 else u
        return u

    eps = 1 / (1 + np.exp(-float(params["epsilon"])))
    s_phi, s_q = float(params["phi"]) ** 2, float(params["q"]) ** 2

    def k(u: np.ndarray, v: np.ndarray) -> float:
        deep = np.exp(-((phi(u) - phi(v)) ** 2).sum() / s_phi)
        q = np.exp(-((u - v) ** 2).sum() / s_q)
        if form == "product":
            return float(((1 - eps) * deep + eps) * q)
        return float((1 - eps) * deep + eps * q)

    a, b, n = x.numpy(), y.numpy(), len(x)
    pairs = range(n)
    h = np.array(
        [
            [k(a[s], a[t]) + k(b[s], b[t]) - k(a[s], b[t]) - k(b[s], a[t]) for t in pairs]
            for s in pairs
        ]
    )
    mmd2 = off_diagonal_mean(h)
    variance = 4 / n**3 * (h.sum(1) ** 2).sum() - 4 / n**4 * h.sum() ** 2
    return float(mmd2), float(mmd2 / np.sqrt(variance + 1e-8))


def trained(seed: int, width: int = 3) -> dict[str, Any]:
    """Parameters away from where they start, so that every part of the kernel counts."""
    params = DeepKernel.start(width, seed, torch.float64)
    moved = {"epsilon": torch.tensor(-1.0 - seed), "phi": torch.tensor(0.4), "q": torch.tensor(1.3)}
    return {**params, **trees.apply(torch.Tensor.double, moved)}


@pytest.mark.parametrize("form", ["product", "sum"])
def test_the_deep_kernel_is_the_one_written_out(form: Any) -> None:
    x, y = samples(6, 3)
    for params in (trained(0), DeepKernel.start(3, 1, torch.float64)):
        mmd2, ratio = written_out(params, form, x, y)
        kernel = DeepKernel(params, form)
        assert kernel.mmd2(x, y).item() == pytest.approx(mmd2, abs=1e-13)
        assert kernel.objective(x, y).item() == pytest.approx(ratio, abs=1e-9)
    values = [DeepKernel(trained(0), f).mmd2(x, y).item() for f in ("product", "sum")]
    assert abs(values[0] - values[1]) > 1e-3


@pytest.mark.parametrize("form", ["product", "sum"])
def test_the_gradient_of_the_objective_is_that_by_differences(form: Any) -> None:
    x, y = samples(2, 5, 3)
    stack, h = trees.stack([trained(0), trained(1)]), 1e-6
    _, slopes = DeepKernel(stack, form).ascent(x, y, shift=2)
    params, by = trees.leaves(stack), trees.leaves(slopes)
    chance = torch.Generator().manual_seed(0)
    for place in range(len(params)):
        way = torch.randn(params[place].shape, generator=chance, dtype=torch.float64)

        def value(far: float, place: int = place, way: Tensor = way) -> Tensor:
            moved = [p + far * way if i == place else p for i, p in enumerate(params)]
            return DeepKernel(trees.unflatten(stack, moved), form).objective(x, y, shift=2)

        expected = (value(h) - value(-h)) / (2 * h)
        found = (by[place] * way).flatten(1).sum(-1) if way.dim() > 1 else by[place] * way
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("form", ["product", "sum"])
def test_the_deep_kernels_mmd_is_differentiated_once_and_twice(form: Any) -> None:
    x, y = samples(2, 4, 3)
    stack = trees.stack([trained(0), trained(1)])

    def value(own: Tensor) -> Tensor:
        return DeepKernel(stack, form).mmd2(own, y)

    own = x.requires_grad_()
    assert gradcheck(value, own)
    assert gradgradcheck(value, own)
    each = vmap(grad(lambda p, a, b: DeepKernel(p, form).mmd2(a, b), argnums=1))(stack, x, y)
    torch.testing.assert_close(each, torch.autograd.grad(value(own).sum(), own)[0])


@pytest.mark.parametrize("apart", [1e-1, 1e-2, 1e-3])
def test_a_kernels_gradient_keeps_its_digits_where_rows_are_near(apart: float) -> None:
    x, y = samples(100, 3, apart=apart)
    params = {**DeepKernel.start(3, 0, torch.float64), "phi": torch.tensor(1.0).double()}

    def slopes(dtype: torch.dtype) -> Tensor:
        kernel = DeepKernel(trees.apply(lambda leaf: leaf.to(dtype), params))
        _, found = kernel.ascent(x.to(dtype), y.to(dtype), shift=1)
        return torch.cat([leaf.flatten() for leaf in trees.leaves(found)]).double()

    exact = slopes(torch.float64)
    assert (slopes(torch.float32) - exact).norm() < 3e-4 * exact.norm()


def test_a_shift_pairs_the_rows_of_a_rolled_sample() -> None:
    x, y = samples(6, 3)
    kernel = DeepKernel(trained(0))
    found = kernel.objective(x, y, shift=2, plain=three_distances(x, y))
    torch.testing.assert_close(found, kernel.objective(x, y.roll(2, -2)), rtol=0, atol=1e-13)
    assert abs(found - kernel.objective(x, y)) > 1e-3


def test_the_deep_kernel_has_finite_gradients_where_all_is_alike() -> None:
    x, y = samples(5, 3)
    kernel = DeepKernel(trained(0))
    assert gradcheck(lambda own: kernel.mmd2(own, x), x.clone().requires_grad_())
    _, same = kernel.ascent(x, x)
    assert all(leaf.isfinite().all() for leaf in trees.leaves(same))
    assert kernel.objective(x, x).item() == 0
    assert kernel.mmd2(x[:1], y[:1]).item() == 0
