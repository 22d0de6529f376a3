"""FedFA's arithmetic on numbers that can be done by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fl.blocks.feature_statistics import (
    adaptive_weights,
    augment,
    batch_mean,
    batch_variance,
    channel_moments,
    update_running_means,
)


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


X = tensor([[[[1.0, 3.0]], [[0.0, 4.0]]], [[[5.0, 9.0]], [[2.0, 2.0]]]])
"""Two samples of two channels and two pixels: means 2, 2 and 7, 2; unbiased variances 2, 8 and 8,
0."""


def test_moments_are_of_each_channel_of_each_sample() -> None:
    mean, sd = channel_moments(X, 0.0)
    assert mean.tolist() == [[2, 2], [7, 2]]
    torch.testing.assert_close(sd.square(), tensor([[2, 8], [8, 0]]))
    assert channel_moments(X, 0.25)[1][1, 1] == 0.5, "eps stands beside the variance"
    assert channel_moments(X[..., :1], 0.25)[1].tolist() == [[0.5, 0.5]] * 2, (
        "a pixel does not vary"
    )


def test_augment_by_hand() -> None:
    """Channel 0: means 2 and 7 vary by 12.5, deviations sqrt 2 and sqrt 8 by (sqrt 2)^2 / 2 = 1.

    gamma = 1 of the means doubles 12.5 to 25, so that a noise of 1 adds 5; gamma = 3 of the
    deviations makes 1 into 4, so that a noise of -0.5 takes 1 away. Pixels of sample 0 stand
    1/sqrt 2 of a deviation from their mean.
    """
    noise_mean, noise_sd = tensor([[1.0, 0], [0, 0]]), tensor([[-0.5, 0], [0, 0]])
    found = augment(X, noise_mean, noise_sd, tensor([1.0, 0]), tensor([3.0, 0]), eps=1e-12)
    apart = (math.sqrt(2) - 1) / math.sqrt(2)
    torch.testing.assert_close(found[0, 0, 0], tensor([7 - apart, 7 + apart]))
    torch.testing.assert_close(found[0, 1], X[0, 1])
    torch.testing.assert_close(found[1], X[1])


def test_eps_stands_beside_the_variance_over_the_batch() -> None:
    """Two equal samples do not vary; noise 1 then moves the mean by sqrt((0 + 1) eps)."""
    x = tensor([[[[1.0, 3.0]]], [[[1.0, 3.0]]]])
    one, zero = tensor([[1.0], [0.0]]), tensor([0.0])
    found = augment(x, one, torch.zeros_like(one), zero, zero, eps=0.04)
    torch.testing.assert_close(found[:, 0, 0], tensor([[1.2, 3.2], [1.0, 3.0]]))


def test_samples_that_weigh_nothing_do_not_count() -> None:
    values, weight = tensor([[1.0], [100.0], [3.0]]), tensor([1.0, 0.0, 1.0])
    assert batch_mean(values, weight).tolist() == [2]
    assert batch_variance(values, weight).tolist() == batch_variance(values[::2]).tolist() == [2]
    assert batch_variance(values, tensor([1.0, 0, 0])).tolist() == [0], "one sample"
    assert batch_mean(values, torch.zeros(3)).tolist() == [0]
    x, noise, gamma = torch.randn(3, 2, 2, 2).double(), torch.randn(3, 2).double(), torch.ones(2)
    found = augment(x, noise, noise, gamma, gamma, weight=weight)
    other = torch.stack([x[0], 9 * x[1], x[2]])
    same = augment(other, noise, noise, gamma, gamma, weight=weight)
    assert torch.equal(found[::2], same[::2])
    alone = augment(x[::2], noise[::2], noise[::2], gamma, gamma)
    torch.testing.assert_close(found[::2], alone, rtol=1e-12, atol=1e-12)


def test_adaptive_weights_are_one_on_average() -> None:
    """Variances 0, 1 and infinite: t = 0, 1/2 and 1, and C / sum t = 2."""
    found = adaptive_weights(tensor([0.0, 1.0, 1e12]), eps=1e-9)
    torch.testing.assert_close(found, tensor([0.0, 1.0, 2.0]), rtol=0, atol=1e-7)
    assert adaptive_weights(tensor([3.0, 3.0])).tolist() == pytest.approx([1, 1])
    stacked = adaptive_weights(tensor([[0.0, 1.0], [2.0, 5.0]]))
    torch.testing.assert_close(stacked[1], adaptive_weights(tensor([2.0, 5.0])))


def test_clients_in_a_stack_and_under_vmap_are_those_alone() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, 2, 3, 3, generator=draw, dtype=torch.float64)
    noise = torch.randn(2, 3, 4, 2, generator=draw, dtype=torch.float64)
    gamma = torch.rand(2, 3, 2, generator=draw, dtype=torch.float64)
    alone = torch.stack([augment(x[k], *noise[:, k], *gamma[:, k]) for k in range(3)])
    for together in (augment(x, *noise, *gamma), torch.vmap(augment)(x, *noise, *gamma)):
        torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)


def test_running_means_follow_the_batches_that_were_met() -> None:
    """For one client, and for two of which the second met nothing."""
    old, new = {"a": {"mean": tensor([1.0, 2.0])}}, {"a": {"mean": tensor([3.0, 0.0])}}
    assert update_running_means(old, new, tensor(1.0), 0.75)["a"]["mean"].tolist() == [1.5, 1.5]
    two = {"a": {"mean": old["a"]["mean"].repeat(2, 1)}}, {"a": {"mean": tensor([[3.0, 0]] * 2)}}
    found = update_running_means(*two, tensor([1.0, 0.0]), 0.75)["a"]["mean"]
    assert found.tolist() == [[1.5, 1.5], [1, 2]]
