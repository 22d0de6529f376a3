"""MixStyle by hand, on a few numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fl.api.alteration import Alteration
from fl.api.method import BuildContext
from fl.api.network import Network
from fl.api.training import Training
from fl.blocks.batch_alterations import draw_partners
from fl.pytorch import keyed
from fl.terms.alterations.mixstyle import PARTNER_STREAM, STYLE_EPS, MixStyle, mix_styles

X = torch.tensor([[[[1.0, 3.0]]], [[[10.0, 30.0]]], [[[5.0, 5.0]]]], dtype=torch.float64)
"""Three samples of one channel and two pixels: means 2, 20, 5 and deviations 1, 10, 0."""


def made(p: float = 1.0) -> Alteration:
    network = Network(lambda: torch.nn.Linear(2, 2))
    return MixStyle(("0",), p=p).build(BuildContext(network, Training(), 2, 2))


def test_a_style_is_mixed_with_the_partners() -> None:
    """Sample 0 with lambda 1/4: mean 2/4 + 3 * 20/4 = 15.5, deviation 1/4 + 3 * 10/4 = 7.75, and
    its pixels stood one deviation below and above the mean. Sample 1 keeps all of its style; sample
    2 stands at its mean, so that only its new mean (5 + 20) / 2 is seen.
    """
    own = torch.tensor([0.25, 1.0, 0.5], dtype=torch.float64)
    found = mix_styles(X, torch.tensor([1, 0, 1]), own)
    expected = [[15.5 - 7.75, 15.5 + 7.75], [10, 30], [12.5, 12.5]]
    np.testing.assert_allclose(found.flatten(1), expected, rtol=2 * STYLE_EPS)


def test_no_gradient_goes_through_styles() -> None:
    """Then a pixel moves its own value alone, by new over old deviation."""
    x = X.clone().requires_grad_()
    own = torch.tensor([0.25, 1.0, 0.5], dtype=torch.float64)
    mix_styles(x, torch.tensor([1, 0, 1]), own)[0, 0, 0, 0].backward()
    assert x.grad is not None
    assert float(x.grad[0, 0, 0, 0]) == pytest.approx(7.75, rel=2 * STYLE_EPS)
    assert x.grad.count_nonzero() == 1


def test_partners_are_a_permutation_of_what_weighs_something() -> None:
    weight = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
    seen = [
        tuple(draw_partners(torch.arange(5) + 5 * i, weight, PARTNER_STREAM).tolist())
        for i in range(600)
    ]
    assert {one[1] for one in seen} == {1} and {one[4] for one in seen} == {4}
    counts = [seen.count(one) for one in set(seen)]
    assert len(counts) == 6, "all orders of three"
    assert 55 < min(counts) <= max(counts) < 145, "5 deviations about 100"
    assert all(sorted(one) == [0, 1, 2, 3, 4] for one in set(seen))


def test_whether_is_one_draw_of_the_first_samples_key() -> None:
    p = 0.3
    apply, altered = made(p).apply, 0
    for batch in range(1000):
        key = torch.tensor([batch, 5000 + batch, 9000 + batch])
        found, _ = apply("0", X, {"key": key, "weight": torch.ones(3)}, {})
        drawn = bool(keyed.uniform(key[0], 0) < p)
        assert drawn or torch.equal(found, X)
        altered += drawn
    assert abs(altered - 1000 * p) <= 75, "5 deviations"


def test_a_batch_of_one_sample_keeps_its_style() -> None:
    batch = {"key": torch.tensor([3, 4, 5]), "weight": torch.tensor([0.0, 1.0, 0.0])}
    found, _ = made().apply("0", X, batch, {})
    torch.testing.assert_close(found, X, rtol=1e-12, atol=0)
