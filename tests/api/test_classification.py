"""Losses against numpy, on batches in which some samples weigh nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fl.api import classification_loss, weighted_mean
from fl.api.tasks.classification import SMOOTHING

WEIGHT = [1.0, 0.5, 0.0, 2.25]
Y = np.array([0, 1, 1, 0])


def double(values: Any) -> Tensor:
    return torch.as_tensor(np.array(values, dtype=np.float64))


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        ([1, 1, 1, 1], 2.5),
        ([1, 0, 0, 1], 2.5),
        ([0, 0, 1, 0], 3.0),
        ([0.25, 0.5, 0, 0.25], 2.25),
        ([0, 0, 0, 0], 0.0),
    ],
)
def test_weighted_mean(weight: list[float], expected: float) -> None:
    values = double([1, 2, 3, 4]).requires_grad_()
    mean = weighted_mean(values, {"weight": double(weight)})
    assert mean.item() == pytest.approx(expected, abs=1e-15)
    [grad] = torch.autograd.grad(mean, values)
    np.testing.assert_allclose(grad, np.array(weight) / (sum(weight) or 1), rtol=0, atol=1e-15)


def test_cross_entropy_is_that_of_numpy() -> None:
    z = np.random.default_rng(0).normal(size=(4, 2))
    losses = np.log(np.exp(z).sum(1)) - z[np.arange(4), Y]
    for weight in (WEIGHT, [0.0] * 4):
        batch = {"y": torch.from_numpy(Y), "weight": double(weight)}
        expected = (losses * weight).sum() / (np.sum(weight) or 1)
        assert classification_loss(double(z), batch).item() == pytest.approx(expected, abs=1e-14)


def test_smoothing_gives_nothing_to_a_class_that_is_ruled_out() -> None:
    z = np.random.default_rng(1).normal(size=(4, 3))
    z[:, 2] = -np.inf
    logs = z[:, :2] - np.log(np.exp(z[:, :2]).sum(1, keepdims=True))
    expected = -(0.75 * logs[np.arange(4), Y] + 0.25 * logs.mean(1)).mean()
    outputs = double(z).requires_grad_()
    smoothing = {
        "y": torch.from_numpy(Y),
        "weight": double([1.0] * 4),
        SMOOTHING: double([0.25] * 4),
    }
    loss = classification_loss(outputs, smoothing)
    assert loss.item() == pytest.approx(expected, abs=1e-14)
    [grad] = torch.autograd.grad(loss, outputs)
    assert grad.isfinite().all() and not grad[:, 2].any()
