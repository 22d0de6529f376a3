from __future__ import annotations

import cvxpy
import numpy as np
import pytest
import torch
from torch import Tensor

from fl.blocks.mixing import (
    cosines,
    fedsac_weights,
    mix,
    pfedgraph_weights,
    project_to_simplex,
)


def double(values: object) -> Tensor:
    return torch.as_tensor(np.array(values, dtype=np.float64))


def solved(v: np.ndarray, linear: np.ndarray | float = 0.0) -> np.ndarray:
    """argmin ||w - v||^2 - <w, linear> over the simplex, by a solver of quadratic programs.

    It gets v - max v: as sum w = 1 that changes the objective by a constant, and the solver is more
    precise on small numbers.
    """
    w = cvxpy.Variable(len(v))
    objective = cvxpy.sum_squares(w) - cvxpy.sum(cvxpy.multiply(2 * (v - v.max()) + linear, w))
    problem = cvxpy.Problem(cvxpy.Minimize(objective), [w >= 0, cvxpy.sum(w) == 1])
    problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return np.asarray(w.value)


DRAW = np.random.default_rng(3)
ROWS = {
    **{f"random {k}": DRAW.normal(0, 2, k) for k in (1, 2, 5, 12)},
    "narrow": DRAW.normal(0, 0.1, 7),
    "ties": np.array([0.5, 0.2, 0.5, 0.5, -1.0, 0.2]),
    "all alike": np.full(6, 3.0),
    "ties at the threshold": np.array([1.0, 0.0, 0.0, 0.0]),
    "very negative": np.array([-1e3, -1e3 - 0.4, -1e3 - 0.1, -2e3]),
    "very large": np.array([1e4, 1e4 - 0.4, 5.0, -1e4]),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_projection_is_the_nearest_point(name: str) -> None:
    v = ROWS[name]
    found = project_to_simplex(double(v))
    np.testing.assert_allclose(found, solved(v), rtol=0, atol=1e-6)
    assert float(found.sum()) == pytest.approx(1, abs=1e-11)
    assert (found >= 0).all()


def test_rows_of_numbers_beyond_1_in_precision_have_a_nearest_point_too() -> None:
    rows = double([[1e17, 0.0], [-1e17, -1e17], [3e200, -3e200]])
    assert project_to_simplex(rows).tolist() == [[1.0, 0.0], [0.5, 0.5], [1.0, 0.0]]


def test_a_row_that_is_no_number_stays_none_and_spoils_no_other() -> None:
    """So that a run that diverges can still say so."""
    found = project_to_simplex(double([[float("nan"), 0.0], [0.25, 0.75]]))
    assert found[0].isnan().all()
    assert found[1].tolist() == [0.25, 0.75]


@pytest.mark.parametrize("lam", [0.05, 0.8, 20.0])
def test_the_graph_of_pfedgraph_solves_its_program(lam: float) -> None:
    """min ||w - p||^2 - (1/lam) <w, s_i> over the simplex, for every client."""
    draw = np.random.default_rng(4)
    models = draw.normal(size=(6, 9)) + draw.normal(size=9)
    models /= np.linalg.norm(models, axis=1, keepdims=True)
    similarity, fractions = models @ models.T, draw.dirichlet([1.0] * 6)
    found = pfedgraph_weights(double(fractions), double(similarity), lam)
    for i, row in enumerate(found):
        expected = solved(fractions, similarity[i] / lam)
        np.testing.assert_allclose(row, expected, rtol=0, atol=1e-6)
    assert not torch.allclose(found, found[:1])


@pytest.mark.parametrize(("alpha", "beta"), [(0.9, 1.4), (0.5, 1.6), (0.0, 1.4), (0.9, 0.0)])
def test_the_network_of_fedsac_solves_its_program(alpha: float, beta: float) -> None:
    """min ||w - p||^2 + alpha <w, c_i> - beta <w, s_i> over the simplex, for every client."""
    draw = np.random.default_rng(7)
    similarity, alike = (np.clip(draw.normal(0.3, 0.4, (6, 6)), -1, 1) for _ in range(2))
    fractions = draw.dirichlet([1.0] * 6)
    values = (double(fractions), double(similarity), double(alike))
    found = fedsac_weights(*values, alpha, beta)
    for i, row in enumerate(found):
        expected = solved(fractions, beta * similarity[i] - alpha * alike[i])
        np.testing.assert_allclose(row, expected, rtol=0, atol=1e-6)


def test_without_complementarity_fedsac_has_the_graph_of_pfedgraph() -> None:
    draw = np.random.default_rng(9)
    similarity, fractions = double(draw.normal(size=(5, 5))), double(draw.dirichlet([1.0] * 5))
    nothing = torch.zeros_like(similarity)
    graph = pfedgraph_weights(fractions, similarity, 0.8)
    network = fedsac_weights(fractions, similarity, nothing, 0.9, 1 / 0.8)
    torch.testing.assert_close(network, graph, rtol=0, atol=1e-15)


def test_mix_takes_weighted_means_and_leaves_counters() -> None:
    weights = double([[1.0, 0.0, 0.0], [0.5, 0.25, 0.25], [0.0, 0.1, 0.9]])
    draw = np.random.default_rng(5)
    w, b = draw.normal(size=(3, 2, 4)), draw.normal(size=3)
    counts = torch.tensor([7, 1, 4])
    tree = {"params": {"w": double(w), "b": double(b).float()}, "buffers": {"n": counts}}
    found = mix(weights, tree)
    expected = np.einsum("ij,jab->iab", weights.numpy(), w)
    np.testing.assert_allclose(found["params"]["w"], expected, rtol=0, atol=1e-15)
    assert found["params"]["b"].dtype == torch.float32
    np.testing.assert_allclose(found["params"]["b"], weights.numpy() @ b, rtol=0, atol=1e-6)
    assert torch.equal(found["buffers"]["n"], counts)


def test_cosines_are_over_all_leaves_together() -> None:
    draw = np.random.default_rng(6)
    a, b = draw.normal(size=(4, 2, 3)), draw.normal(size=(4, 5))
    a[3], b[3] = -2 * a[0], -2 * b[0]
    found = cosines({"a": double(a).float(), "in": {"b": double(b).float()}})
    flat = np.concatenate([a.reshape(4, -1), b], axis=1).astype(np.float32).astype(np.float64)
    expected = [[x @ y / np.sqrt(x @ x * (y @ y)) for y in flat] for x in flat]
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)
    assert float(found[0, 3]) == pytest.approx(-1)


def test_a_model_that_has_not_moved_is_like_no_other() -> None:
    found = cosines({"a": double([[0.0, 0.0], [1.0, 0.0]])})
    assert found.tolist() == [[0.0, 0.0], [0.0, 1.0]]
