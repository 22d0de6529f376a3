"""Distances of data set distillation, and supervised contrast, beside sums written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fl.blocks.contrastive_loss import supervised_contrastive_loss
from fl.blocks.distillation import (
    distribution_distance,
    gradient_distance,
    stacked_distribution_distance,
)


def noise(*shape: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


def test_gradient_distance_by_hand() -> None:
    a = [torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([5.0, 5.0])]
    b = [torch.tensor([[4.0, 3.0], [0.0, 2.0]]), torch.tensor([-5.0, 5.0])]
    # Row 1: 24 / 25; row 2: 0; the tensor of one dimension counts nothing.
    expected = (1 - 24 / (25 + 1e-6)) + 1
    assert gradient_distance(a, b).item() == pytest.approx(expected, abs=1e-7)
    assert gradient_distance([noise(5)], [noise(5)]).item() == 0


def test_a_row_of_zeros_is_at_distance_one_and_has_a_gradient() -> None:
    a = torch.zeros(1, 3, requires_grad=True)
    found = gradient_distance([a], [torch.ones(1, 3)])
    [grad] = torch.autograd.grad(found, [a])
    assert found.item() == 1
    assert torch.isfinite(grad).all()


def test_distribution_distance_by_hand() -> None:
    real = [torch.tensor([[0.0, 0.0], [2.0, 4.0]]), torch.tensor([[1.0, 1.0]]), torch.zeros(0, 2)]
    virtual = [torch.tensor([[1.0, 1.0]]), torch.tensor([[4.0, 1.0], [2.0, 1.0]]), torch.ones(1, 2)]
    # Means (1, 2) and (1, 1): 1; (1, 1) and (3, 1): 4; a class without real features: 0.
    assert distribution_distance(real, virtual).item() == pytest.approx(5)


def test_classes_at_once_are_classes_one_by_one() -> None:
    sizes = (4, 7, 0)
    real = [noise(n, 5, seed=n) for n in sizes]
    virtual = noise(3, 2, 5, seed=9)
    filled, weight = noise(3, 7, 5, seed=8), torch.zeros(3, 7, dtype=torch.float64)
    for c, own in enumerate(real):
        filled[c, : len(own)], weight[c, : len(own)] = own, 1
    together = stacked_distribution_distance(filled, virtual, weight)
    assert together.item() == pytest.approx(distribution_distance(real, list(virtual)).item())


def contrast(z: Tensor, y: list[int], tau: float) -> float:
    """Supervised contrast by loops."""
    z = z / z.norm(dim=1, keepdim=True)
    total = 0.0
    for i in range(len(z)):
        scores = {j: float(z[i] @ z[j]) / tau for j in range(len(z)) if j != i}
        log = math.log(sum(map(math.exp, scores.values())))
        own = [scores[j] - log for j in scores if y[j] == y[i]]
        total -= sum(own) / len(own) if own else 0.0
    return total / len(z)


@pytest.mark.parametrize("tau", [0.07, 0.5])
def test_supervised_contrast_by_hand(tau: float) -> None:
    z, y = noise(7, 4), [0, 1, 0, 2, 1, 0, 0]
    found = supervised_contrastive_loss(z, torch.tensor(y), tau)
    assert found.item() == pytest.approx(contrast(z, y, tau))
    assert supervised_contrastive_loss(z, torch.arange(7), tau).item() == 0


def test_samples_without_weight_are_not_there() -> None:
    z, y = noise(6, 4), torch.tensor([0, 0, 1, 1, 0, 1])
    weight = torch.tensor([1.0, 1, 1, 0, 0, 1])
    there = weight > 0
    found = supervised_contrastive_loss(z, y, 0.07, weight)
    assert found.item() == pytest.approx(supervised_contrastive_loss(z[there], y[there]).item())
    z.requires_grad_()
    [grad] = torch.autograd.grad(supervised_contrastive_loss(z, y, 0.07, weight), [z])
    assert not grad[~there].any()
    assert torch.isfinite(grad).all()
