"""Methods of domain generalisation beside the equations of their papers in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from contract.numbers import Samples, g, of, trained

from fl.engine import simulate
from fl.methods.feddg_ga import centred_gaps

CLIENTS: list[Samples] = [[(1, 0), (0.5, 1)], [(3, 1)], [(2, 0), (1, 0)]]


def loss(w: float, samples: Samples) -> float:
    """Mean cross-entropy at (w, -w)."""
    return float(np.mean([np.log(1 + np.exp((2 if y else -2) * w * x)) for x, y in samples]))


def move(w: float, samples: Samples) -> float:
    """The weight after one step on all samples."""
    return w - 0.1 * float(np.mean([g(w, x, y) for x, y in samples]))


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
