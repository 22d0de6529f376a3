"""FedDG-GA and FedIIR beside the equations of their papers in NumPy and plain autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hand_model import Samples, is_pair, mean_g, of, s, trained

from fl.api import Output
from fl.api.tasks.classification import CLASSIFICATION
from fl.engine import simulate
from fl.methods.feddg_ga import centred_gaps
from fl.methods.fediir import head_gradient

CLIENTS: list[Samples] = [[(1, 0), (0.5, 1)], [(3, 1)], [(2, 0), (1, 0)]]


def loss(w: float, samples: Samples) -> float:
    """Mean cross-entropy at (w, -w)."""
    return float(np.mean([np.log(1 + np.exp((2 if y else -2) * w * x)) for x, y in samples]))


def move(w: float, samples: Samples) -> float:
    """The weight after one step on all samples."""
    return w - 0.1 * mean_g(w, samples)


def test_feddg_ga_is_algorithm_1() -> None:
    """Each round: weigh, average, measure is_known losses of every client, adjust the weights."""
    rounds, step, w, a = 4, 0.3, 0.2, np.full(3, 1 / 3)
    simulation = of("feddg-ga", CLIENTS, {"step": step}, rounds=rounds, local_steps=1)
    state = trained(simulation, begin=w)
    history = []
    for t in range(rounds):
        models = [move(w, samples) for samples in CLIENTS]
        history.append(a)
        w = float(a @ models)
        gaps = np.array([loss(w, s) - loss(v, s) for v, s in zip(models, CLIENTS, strict=True)])
        centred = gaps - gaps.mean()
        a = np.maximum(a + step * (1 - t / rounds) * centred / np.abs(centred).max(), 0)
        a = a / a.sum()
    assert not np.allclose(history[1], history[3])
    weight = state.server["params"]["weight"].flatten().tolist()
    assert weight == pytest.approx([w, -w], abs=1e-12)
    assert state.server["weights"].tolist() == pytest.approx(history[-1].tolist(), abs=1e-12)


def test_feddg_ga_moves_no_weight_without_a_gap_of_before() -> None:
    """With half of the clients drawn, the first weight moves where two have a round before."""
    clients: list[Samples] = [*CLIENTS, [(1, 1)]]
    simulation = of("feddg-ga", clients, rounds=6, participation=0.5, local_steps=1)
    state, earlier, has_moved = simulation.begin(), set[int](), False
    for round_ in simulate.rounds(simulation, state, 0, "stacked"):
        drawn = set(simulation.round_schedule(round_.number).clients.tolist())
        has_moved |= len(drawn & earlier) == 2
        earlier |= drawn
        weights = round_.state.server["weights"]
        assert float(weights.sum()) == pytest.approx(1, abs=1e-12)
        assert bool((weights != 0.25).any()) == has_moved
    assert has_moved


def test_gaps_are_centred_and_unknown_or_equal_ones_move_nothing() -> None:
    gaps, is_known = torch.tensor([0.1, 0.4, 9.0]), torch.tensor([True, True, False])
    torch.testing.assert_close(centred_gaps(gaps, is_known), torch.tensor([-1.0, 1.0, 0.0]))
    for unknown in (is_known & False, torch.tensor([True, False, False])):
        assert not centred_gaps(gaps, unknown).any()


def test_a_weight_of_feddg_ga_does_not_fall_below_zero() -> None:
    """The third client's gap is far below the mean; a step of 1 takes its weight away."""
    simulation = of("feddg-ga", CLIENTS, {"step": 1.0}, rounds=2, local_steps=1)
    weights = trained(simulation, begin=0.2).server["weights"]
    assert float(weights.min()) == 0
    assert float(weights.sum()) == pytest.approx(1, abs=1e-12)


def curvature(w: float, samples: Samples) -> float:
    """Derivative of the first component of the gradient at (w, -w) by that component."""
    return float(np.mean([s(2 * w * x) * s(-2 * w * x) * x**2 for x, _ in samples]))


def test_fediir_keeps_gradients_near_their_moving_mean() -> None:
    """At (w, -w) the distance is 2 (g - m)^2, whose derivative is 4 (g - m) times the curvature."""
    penalty, decay, w, m = 0.7, 0.8, 0.2, 0.0
    simulation = of(
        "fediir", CLIENTS, {"penalty": penalty, "decay": decay}, rounds=3, local_steps=2
    )
    state, sizes = trained(simulation, begin=w), [len(samples) for samples in CLIENTS]
    for _ in range(3):
        slopes = [mean_g(w, samples) for samples in CLIENTS]
        m = decay * m + (1 - decay) * float(np.average(slopes, weights=sizes))
        ends = []
        for samples in CLIENTS:
            v = w
            for _ in range(2):
                slope = mean_g(v, samples)
                v -= 0.1 * (slope + penalty * 4 * (slope - m) * curvature(v, samples))
            ends.append(v)
        w = float(np.average(ends, weights=sizes))
    assert is_pair(state.server["params"]["weight"], w)
    assert is_pair(state.server["mean gradient"]["weight"], m)


def test_the_penalty_of_fediir_is_the_released_codes() -> None:
    """`update` of YamingGuo98/FedIIR, 3e7a785: autograd through autograd, on two layers."""
    draw = torch.Generator().manual_seed(2)
    shapes = ((6, 3), (5, 3), (5,), (4, 5), (4,), (4, 5), (4,))
    x, *weights, mean_weight, mean_bias = (
        torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in shapes
    )
    weights = [leaf.requires_grad_() for leaf in weights]
    y, samples = torch.tensor([0, 1, 2, 3, 0, 1]), torch.tensor([1.0, 1, 1, 1, 1, 0]).double()

    def pass_of(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        features = torch.tanh(F.linear(x[:count], weights[0], weights[1]))
        return features, F.linear(features, weights[2], weights[3])

    features, outputs = pass_of(5)
    loss = F.cross_entropy(outputs, y[:5])
    slopes = torch.autograd.grad(loss, weights[2:], create_graph=True)
    pairs = zip(slopes, (mean_weight, mean_bias), strict=True)
    expected = torch.stack([(a - b).pow(2).sum() for a, b in pairs]).sum()
    features, outputs = pass_of(6)
    found = head_gradient(
        CLASSIFICATION, Output(outputs, features, {}), {"y": y, "weight": samples}
    )
    value = (found["weight"] - mean_weight).square().sum() + (
        found["bias"] - mean_bias
    ).square().sum()
    torch.testing.assert_close(value, expected)
    for slope, other in zip(
        torch.autograd.grad(value, weights), torch.autograd.grad(expected, weights), strict=True
    ):
        torch.testing.assert_close(slope, other, rtol=0, atol=1e-13)
