from __future__ import annotations

import math

import pytest
import torch
from torch.func import vmap

from fl.pytorch.keyed import beta, derive_keys, stream_number, uniform

KEYS = torch.arange(1000) + 2**61


def test_the_numbers_are_uniform_and_independent_of_their_neighbours() -> None:
    draw = uniform(KEYS, 0, (50,))
    assert draw.shape == (1000, 50)
    assert draw.dtype == torch.float64
    assert 0 <= float(draw.min()) < 1e-4
    assert 1 - 1e-4 < float(draw.max()) < 1
    shares = torch.histc(draw, 20, 0, 1) / draw.numel()
    # The standard deviation of a share of 1/20 of 50,000 draws is 0.001.
    assert float((shares - 0.05).abs().max()) < 0.005
    for shifted in (draw[1:], draw[:, 1:], uniform(KEYS, 1, (50,))):
        part = draw[: len(shifted), : shifted.shape[1]]
        correlation = torch.corrcoef(torch.stack([part.flatten(), shifted.flatten()]))[0, 1]
        assert abs(float(correlation)) < 0.02  # Its standard deviation is 0.0045.


def test_a_key_and_a_stream_say_it_all() -> None:
    assert torch.equal(uniform(KEYS, 3, (4, 2)), uniform(KEYS, 3, (4, 2)))
    assert torch.equal(uniform(KEYS[7], 3, (4, 2)), uniform(KEYS, 3, (4, 2))[7])
    assert torch.equal(uniform(KEYS, 3, (8,)).reshape(-1, 4, 2), uniform(KEYS, 3, (4, 2)))
    assert torch.equal(vmap(lambda key: uniform(key, 3, (4,)))(KEYS), uniform(KEYS, 3, (4,)))
    assert len(uniform(KEYS, 0).unique()) == 1000
    assert len(torch.cat([uniform(KEYS[:1], stream) for stream in range(100)]).unique()) == 100


def test_known_numbers() -> None:
    """Runs must not change with a version; the first is SplitMix64's mix of 0 and 1 by hand."""

    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    for key in (1, 12345, 2**62 - 1):
        expected = [mix((mix(key) + count * 0x9E3779B97F4A7C15) % 2**64) >> 11 for count in (0, 1)]
        assert uniform(torch.tensor(key), 0, (2,)).tolist() == [e * 2.0**-53 for e in expected]


@pytest.mark.parametrize(("a", "b"), [(0.001, 0.001), (1, 1), (0.5, 1.5)])
def test_beta_has_the_moments_of_its_distribution(a: float, b: float) -> None:
    count = 60_000
    draw = beta(torch.arange(count), 7, a, b)
    assert draw.dtype == torch.float64
    assert 0 <= float(draw.min()) <= float(draw.max()) <= 1
    mean, variance = a / (a + b), a * b / ((a + b) ** 2 * (a + b + 1))
    assert abs(float(draw.mean()) - mean) < 5 * math.sqrt(variance / count)
    # The fourth central moment of what lies in an interval of length 1 is at most its variance.
    assert abs(float(draw.var()) - variance) < 5 * math.sqrt(variance / count)


def test_beta_is_by_key_and_stream() -> None:
    draw = beta(KEYS, 3, 0.1, 0.1, (2, 3))
    assert draw.shape == (1000, 2, 3)
    assert torch.equal(beta(KEYS[7], 3, 0.1, 0.1, (2, 3)), draw[7])
    assert torch.equal(vmap(lambda key: beta(key, 3, 0.1, 0.1, (2, 3)))(KEYS), draw)
    assert len(draw.unique()) > 5900, "ends such as 1 - 1e-17 fall together"
    assert not torch.equal(beta(KEYS, 4, 0.1, 0.1, (2, 3)), draw)


def test_derived_keys_are_new_ones() -> None:
    own = derive_keys(KEYS, stream_number("mixstyle 0"))
    other = derive_keys(KEYS, stream_number("mixstyle 1"))
    assert len(torch.cat([KEYS, own, other]).unique()) == 3000
    first, second = uniform(own, 0, (50,)).flatten(), uniform(KEYS, 0, (50,)).flatten()
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.02
