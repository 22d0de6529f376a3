"""FedNTD, FedDecorr, FedLC, FedRS, FedExP, FedDisco, FedCM, q-FFL and AFL by arithmetic.

Models of one number are those of `hand_model`. Formulas of released code are typed once more.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import worlds
from hand_model import Samples, g, is_pair, of, s, trained

from fl.api.network import Output
from fl.api.term import Forward
from fl.base.schema import GLOBAL
from fl.blocks.calibration import margin_logits, restricted_logits
from fl.methods.feddisco import FedDisco
from fl.methods.fedntd import TEACHER, not_true_distillation
from fl.terms.feddecorr import FedDecorr
from fl.terms.feduv import FedUV

EVEN: list[Samples] = [[(1, 0)], [(3, 1)]]
"""Two clients of one sample; from w = 0 and rate .1 they move to .05 and -.15."""


def forward(outputs: torch.Tensor, **batch: object) -> Forward:
    output = Output(outputs, outputs, {})
    return Forward(None, output, {}, {}, {}, batch)  # type: ignore[arg-type]


def test_fedntd_is_the_divergence_over_the_other_classes() -> None:
    """As the authors gather them: the logits of the label are taken out before the softmax."""
    draw = torch.Generator().manual_seed(1)
    outputs, teacher = (torch.randn(7, 4, generator=draw, dtype=torch.float64) for _ in range(2))
    y = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    weight = torch.tensor([1.0, 1, 1, 1, 1, 1, 0], dtype=torch.float64)
    outputs.requires_grad_()
    term = not_true_distillation(0.7, 2.0)
    value = term(forward(outputs, y=y, weight=weight, reference={TEACHER: teacher}))
    others = [[c for c in range(4) if c != label] for label in y.tolist()]
    rows = torch.arange(7)[:, None]
    mine, theirs = (o[rows, torch.tensor(others)] / 2.0 for o in (outputs, teacher))
    divergence = F.kl_div(mine.log_softmax(1)[:6], theirs.softmax(1)[:6], reduction="batchmean")
    expected = 0.7 * 4 * divergence
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-14)
    [slope], [expected_slope] = (
        torch.autograd.grad(loss, outputs, retain_graph=True) for loss in (value, expected)
    )
    torch.testing.assert_close(slope, expected_slope, rtol=0, atol=1e-14)


def test_fedntd_of_two_classes_is_fedavg() -> None:
    plain, distilled = (trained(of(name, EVEN, rounds=2)).server for name in ("fedavg", "fedntd"))
    assert worlds.distance(plain, distilled) < 1e-15


def released_decorrelation(x: torch.Tensor) -> torch.Tensor:
    """The penalty of bytedance/FedDecorr, 973e4af2."""
    x = (x - x.mean(0)) / torch.sqrt(1e-8 + x.var(0))
    products = x.T @ x
    outside = ~torch.eye(len(products), dtype=torch.bool)
    return products[outside].square().mean() / len(x)


def test_feddecorr_is_the_released_penalty_or_the_papers_and_ignores_padding() -> None:
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    padded = torch.cat([x, torch.full((3, 5), 7.0, dtype=torch.float64)])
    weight = torch.tensor([1.0] * 9 + [0.0] * 3, dtype=torch.float64)
    released = FedDecorr(scale="released").penalty(padded, weight)
    torch.testing.assert_close(released, released_decorrelation(x), rtol=1e-12, atol=0)
    correlations = np.corrcoef(x.numpy(), rowvar=False)
    paper = FedDecorr(scale="paper").penalty(padded, weight)
    assert float(paper) == pytest.approx((correlations**2).sum() / 25, abs=1e-7)
    assert float(FedDecorr().penalty(x[:1], weight[:1])) == 0
    # Features of two samples have correlations of 1 or -1.
    assert float(FedDecorr(scale="paper").penalty(x[:2], weight[:2])) == pytest.approx(1, abs=1e-5)


def test_margins_are_of_own_counts_and_absent_classes_leave_the_softmax() -> None:
    outputs = torch.tensor([[1.0, -2.0, 3.0]], dtype=torch.float64)
    counts = torch.tensor([16.0, 0.0, 81.0], dtype=torch.float64)
    shifted = margin_logits(outputs, counts, 2.0)
    assert shifted[0].tolist() == pytest.approx([1 - 2 / 2, -math.inf, 3 - 2 / 3])
    assert restricted_logits(outputs, counts, 0.5)[0].tolist() == [1.0, -1.0, 3.0]


def test_fedlc_trains_by_its_margin() -> None:
    """One client, counts 1 and 16: margins tau and tau / 2, so z_0 - z_1 is lower by tau / 2."""
    samples: Samples = [(1, 0), *[(1, 1)] * 16]
    state = trained(of("fedlc", [samples], {"tau": 2.0}, rounds=1, batch_size=17))
    lower = -1.0
    slope = (-s(-lower) + 16 * s(lower)) / 17
    assert is_pair(state.server["params"]["weight"], -0.1 * slope)


def test_fedrs_weakens_the_logit_of_the_class_that_is_absent() -> None:
    """From (w, -w) at x = 1, label 0: the softmax sees (w, -alpha w)."""
    state = trained(of("fedrs", [[(1, 0)]], {"alpha": 0.25}, rounds=1), begin=0.4)
    p = s(-(0.4 + 0.25 * 0.4))
    expected = [0.4 + 0.1 * p, -0.4 - 0.1 * 0.25 * p]
    assert state.server["params"]["weight"].flatten().tolist() == pytest.approx(expected, abs=1e-12)


def test_fedexp_goes_farther_when_updates_differ() -> None:
    """Moves (d, -d) of .05 and -.15: squared lengths .005 and .045, of the mean -.05: .005."""
    simulation = of("fedexp", EVEN, {"epsilon": 0.0}, rounds=1)
    state = trained(simulation)
    eta = (0.005 + 0.045) / 2 / (2 * 0.005)
    assert eta == pytest.approx(2.5)
    assert is_pair(state.server["params"]["weight"], -0.05 * eta)
    view = simulation.method.views[GLOBAL](state.server, None)
    assert is_pair(view["params"]["weight"], -0.05 * eta / 2)


def test_fedexp_never_goes_less_far_than_the_mean() -> None:
    state = trained(of("fedexp", [[(1, 0)], [(1, 0)]], {"epsilon": 0.0}, rounds=1))
    assert is_pair(state.server["params"]["weight"], 0.05)


@pytest.mark.parametrize("distance", ["kl", "l2"])
def test_feddisco_weights_are_the_released_codes(distance: str) -> None:
    """disco.py of MediaBrain-SJTU/FedDisco, f3ea299b, typed once more."""
    counts = np.array([[8, 1, 1], [2, 2, 2], [0, 5, 0], [3, 0, 9]])
    method = FedDisco(a=0.4, b=0.1, distance=distance)  # type: ignore[arg-type]
    distances = torch.stack([method.from_equal(torch.tensor(row).double()) for row in counts])
    n = torch.tensor(counts.sum(1))
    weights = method.weights(distances, n)
    shares = counts / counts.sum(1, keepdims=True)
    if distance == "l2":
        d = np.linalg.norm(shares - 1 / 3, axis=1)
    else:
        d = np.where(shares > 0, shares * np.log(np.where(shares > 0, shares, 1) * 3), 0).sum(1)
        d /= d.sum()
    raw = counts.sum(1) / counts.sum() - 0.4 * d + 0.1
    expected = np.maximum(raw, 0)
    assert (raw < 0).any() or distance == "kl"
    ratio = weights / weights.sum()
    assert ratio.tolist() == pytest.approx(list(expected / expected.sum()), abs=1e-12)


def test_feddisco_without_a_positive_weight_counts_samples() -> None:
    method = FedDisco(a=100.0, b=0.0)
    weights = method.weights(torch.tensor([0.5, 0.7]).double(), torch.tensor([3, 1]))
    assert (weights / weights.sum()).tolist() == [0.75, 0.25]


def test_fedcm_goes_on_in_the_servers_direction() -> None:
    """Two clients, rate .1, alpha .3: round 1 without a direction, round 2 with it."""
    simulation = of("fedcm", EVEN, {"alpha": 0.3}, rounds=2, local_steps=1)
    state = trained(simulation)
    slopes = [g(0.0, x, y) for [(x, y)] in EVEN]
    w = -0.1 * 0.3 * float(np.mean(slopes))
    direction = -w / 0.1
    slopes = [g(w, x, y) for [(x, y)] in EVEN]
    moved = float(np.mean([0.3 * slope + 0.7 * direction for slope in slopes]))
    assert is_pair(state.server["params"]["weight"], w - 0.1 * moved)
    assert is_pair(state.server["direction"]["weight"], moved)


def test_q_ffl_weighs_by_powers_of_the_loss() -> None:
    """One step of rate .1 from w = .2; both components of the pair move."""
    w, q, lipschitz = 0.2, 2.0, 10.0
    state = trained(of("q-ffl", EVEN, {"q": q}, rounds=1, local_steps=1), begin=w)
    deltas, hs = [], []
    for [(x, y)] in EVEN:
        sign = -2 if y == 0 else 2
        loss, slope = math.log(1 + math.exp(sign * w * x)), g(w, x, y)
        deltas.append(loss**q * slope)
        hs.append(q * loss ** (q - 1) * 2 * slope**2 + lipschitz * loss**q)
    expected = w - sum(deltas) / sum(hs)
    assert state.server["params"]["weight"].flatten().tolist() == pytest.approx(
        [expected, -expected], abs=1e-8
    )


def test_q_ffl_counts_clients_alike_whatever_their_samples() -> None:
    uneven: list[Samples] = [[(1, 0)] * 3, [(3, 1)]]
    even, other = (
        trained(of("q-ffl", clients, {"q": 1.0}, rounds=1, local_steps=1, batch_size=3)).server
        for clients in (EVEN, uneven)
    )
    assert worlds.distance(even, other) < 1e-12


def test_afl_raises_the_weight_of_the_client_with_the_larger_loss() -> None:
    """Lambda (1/2, 1/2) rises by eta F, and is projected on the simplex."""
    w, eta = 0.2, 0.4
    state = trained(of("afl", EVEN, {"eta_lambda": eta}, rounds=1, local_steps=1), begin=w)
    losses = [math.log(1 + math.exp((-2 if y == 0 else 2) * w * x)) for [(x, y)] in EVEN]
    half = eta * (losses[1] - losses[0]) / 2
    assert 0 < half < 0.5
    assert state.server["lambda"].tolist() == pytest.approx([0.5 - half, 0.5 + half], abs=1e-12)
    again = trained(of("afl", EVEN, {"eta_lambda": eta}, rounds=2, local_steps=1), begin=w)
    first = w - 0.1 * float(np.mean([g(w, x, y) for [(x, y)] in EVEN]))
    slopes = [g(first, x, y) for [(x, y)] in EVEN]
    expected = first - 0.1 * ((0.5 - half) * slopes[0] + (0.5 + half) * slopes[1])
    assert is_pair(again.server["params"]["weight"], expected)


def test_afl_without_a_weighted_participant_counts_them_alike() -> None:
    """A large rate leaves the client with the smaller loss no weight."""
    state = trained(of("afl", EVEN, {"eta_lambda": 100.0}, rounds=1), begin=0.2)
    assert state.server["lambda"].tolist() == [0.0, 1.0]


def released_feduv(outputs: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """`UVReg` of sonhamin/FedUV, dd2e3c59, typed once more."""
    squares = torch.pdist(features).pow(2)
    uniformity = (-squares / torch.median(squares[squares != 0])).exp().mean()
    goal = torch.eye(outputs.shape[1]).std(dim=0).mean().item()
    variance = F.relu(goal - outputs.softmax(1).std(dim=0)).mean()
    return 2.5 * variance + 0.5 * uniformity


@pytest.mark.parametrize("count", [2, 5, 8])
def test_feduv_is_the_released_penalty_and_ignores_padding(count: int) -> None:
    draw = torch.Generator().manual_seed(3)
    outputs, features = (
        torch.randn(count, width, generator=draw, dtype=torch.float64).requires_grad_()
        for width in (4, 6)
    )
    expected = released_feduv(outputs, features)
    padded = [
        torch.cat([t, torch.full((2, t.shape[1]), 5.0).double()]) for t in (outputs, features)
    ]
    weight = torch.tensor([1.0] * count + [0.0] * 2).double()
    term = FedUV().build(None)  # type: ignore[arg-type]
    output = Output(padded[0], padded[1], {})
    value = term(Forward(None, output, {}, {}, {}, {"weight": weight}))  # type: ignore[arg-type]
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-7)
    for leaf in (outputs, features):
        [slope], [expected_slope] = (
            torch.autograd.grad(loss, leaf, retain_graph=True) for loss in (value, expected)
        )
        torch.testing.assert_close(slope, expected_slope, rtol=0, atol=1e-7)


def test_feduv_of_one_sample_is_zero() -> None:
    output = Output(torch.ones(1, 3), torch.ones(1, 2), {})
    term = FedUV().build(None)  # type: ignore[arg-type]
    forward_of_one = Forward(None, output, {}, {}, {}, {"weight": torch.ones(1)})  # type: ignore[arg-type]
    assert float(term(forward_of_one)) == 0
