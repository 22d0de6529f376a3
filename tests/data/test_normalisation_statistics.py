"""Normalisation by training samples: means, deviations, and constant channels."""

from __future__ import annotations

import numpy as np
import pytest

from fl.data import normalisation


@pytest.mark.parametrize("samples", [3, 48, 1000, 70_000])
@pytest.mark.parametrize("scale", [1.0, 1 / 255])
def test_a_constant_channel_is_divided_by_1(samples: int, scale: float) -> None:
    constants = np.concatenate([np.arange(1, 97) / 10, [77.0, 1e-30, 1e30, -0.7, 0.0]])
    x = np.tile(constants, (samples, 1))
    measured = normalisation.measure_normalisation(x, np.arange(samples), scale)
    assert measured["sd"] == [1.0] * len(constants)
    assert np.allclose(measured["mean"], constants * scale, rtol=1e-9)


def test_a_constant_column_with_gaps_is_divided_by_1() -> None:
    x = np.full((49, 1), 0.7)
    x[::5] = np.nan
    rows = np.arange(49)
    assert normalisation.measure_normalisation(normalisation.fill_gaps(x, rows), rows, 1.0)[
        "sd"
    ] == [1.0]


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e6])
def test_a_channel_that_changes_keeps_its_deviation(offset: float) -> None:
    x = offset + np.random.default_rng(0).normal(size=(2000, 3)) * [1e-3, 1.0, 50.0]
    measured = normalisation.measure_normalisation(x, np.arange(2000), 1.0)
    assert np.allclose(measured["sd"], x.std(axis=0), rtol=1e-6)
    one = np.full((500, 1), offset)
    one[7] += 1
    [sd] = normalisation.measure_normalisation(one, np.arange(500), 1.0)["sd"]
    assert sd == pytest.approx(one.std())
