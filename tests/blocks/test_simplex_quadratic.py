"""Quadratic programs over the simplex, beside a search of all supports."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from fl.methods.fedpac import minimise_on_simplex

RANKS = (1, 2, 4)
DIAGONALS = (0.0, 1e-12, 1e-9, 1e-7, 1e-4)
"""Numbers on the diagonal; the small ones leave a matrix of low rank nearly singular."""


def drawn_matrices(dtype: torch.dtype) -> torch.Tensor:
    """Matrices of four variables; in half of them the first two are equal up to rounding."""
    draw = np.random.default_rng(0)
    matrices = []
    for rank, diagonal, has_twins in itertools.product(RANKS, DIAGONALS, (False, True)):
        factors = draw.normal(size=(20, 4, rank))
        if has_twins:
            factors[:, 1] = factors[:, 0] * (1 + draw.choice([0, 1e-12, 1e-7], size=(20, 1)))
        matrices.append(factors @ factors.transpose(0, 2, 1) + diagonal * np.eye(4))
    return torch.tensor(np.concatenate(matrices), dtype=dtype)


def least_value(matrix: np.ndarray) -> float:
    """Smallest a' P a: on the best support, the stationary point that has no negative weight."""
    values = [float(entry) for entry in matrix.diagonal()]
    for size in (2, 3, 4):
        for support in itertools.combinations(range(4), size):
            part = matrix[np.ix_(support, support)]
            system = np.block([[2 * part, np.ones((size, 1))], [np.ones((1, size)), 0]])
            a = np.linalg.lstsq(system, [0.0] * size + [1.0], rcond=1e-14)[0][:size]
            if (a >= 0).all():
                a /= a.sum()
                values.append(float(a @ part @ a))
    return min(values)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 2e-6), (torch.float64, 1e-9)],
    ids=["float32", "float64"],
)
def test_nearly_singular_programs_are_solved_in_both_precisions(
    dtype: torch.dtype, tolerance: float
) -> None:
    matrices = drawn_matrices(dtype)
    found = minimise_on_simplex(matrices)
    assert found.dtype == dtype
    for matrix, a in zip(matrices.double().numpy(), found.double().numpy(), strict=True):
        assert (a >= 0).all() and a.sum() == pytest.approx(1, abs=1e-6)
        assert a @ matrix @ a <= least_value(matrix) + tolerance * matrix.diagonal().max()


def test_equal_vectors_of_opposite_sign_are_mixed_to_zero_in_single_precision() -> None:
    """P = v v' with v = (1, -3): a = (3/4, 1/4) gives 0."""
    v = torch.tensor([1.0, -3.0])
    assert minimise_on_simplex(torch.outer(v, v)).tolist() == pytest.approx([0.75, 0.25], abs=1e-5)
