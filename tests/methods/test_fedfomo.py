"""FedFomo beside the equations of its paper in NumPy, on a linear model of one feature."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hand_model import Samples, of, stored, trained
from torch import Tensor

from fl.api import trees
from fl.base.schema import PERSONAL
from fl.blocks.candidate_models import epsilon_greedy
from fl.engine import simulate
from fl.engine.simulation import Simulation

CLIENTS: list[Samples] = [
    [(1, 0), (2, 1), (0.5, 0), (1.2, 0)],
    [(3, 0), (1, 1), (2, 1), (0.7, 1)],
    [(1, 1), (2, 0), (1.5, 1), (-1, 0)],
    [(1.1, 0), (0.6, 0), (-1, 1), (2, 0)],
]
"""The last two samples of each are for validation."""


def simulation_of(clients: list[Samples], values: dict[str, Any], **training: Any) -> Simulation:
    simulation = of("fedfomo", clients, {"epsilon": 0.0, **values}, **training)
    client_data = simulation.client_data
    samples = {
        "train": [rows[:-2] for rows in client_data.samples["train"]],
        "val": [rows[-2:] for rows in client_data.samples["train"]],
        "test": client_data.samples["test"],
    }
    return replace(simulation, client_data=replace(client_data, samples=samples))


def loss_and_slope(w: np.ndarray, samples: Samples) -> tuple[float, np.ndarray]:
    """Mean cross-entropy of logits x w, with its gradient by the two weights."""
    x, y = (np.array(values) for values in zip(*samples, strict=True))
    outputs = x[:, None] * w
    p = np.exp(outputs - outputs.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    one = np.eye(2)[y]
    return float(-np.log((p * one).sum(1)).mean()), ((p - one) * x[:, None]).mean(0)


def round_of_fedfomo(
    starts: list[np.ndarray], ends: list[np.ndarray], reference: str, steps: int
) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """The next starts and ends of all clients, and the gains by pairs of clients."""
    next_starts, next_ends, gains = [], [], np.zeros((len(ends), len(ends)))
    for client, samples in enumerate(CLIENTS):
        ref = (starts if reference == "start" else ends)[client]
        for other, model in enumerate(ends):
            length = np.linalg.norm(model - ref)
            if length > 0:
                lowered = loss_and_slope(ref, samples[-2:])[0]
                lowered -= loss_and_slope(model, samples[-2:])[0]
                gains[client, other] = lowered / length
        positive = np.maximum(gains[client], 0)
        w = ref.copy()
        if positive.sum():
            shares = positive / positive.sum()
            w = ref + sum(a * (model - ref) for a, model in zip(shares, ends, strict=True))
        next_starts.append(w)
        for _ in range(steps):
            w = w - 0.5 * loss_and_slope(w, samples[:-2])[1]
        next_ends.append(w)
    return next_starts, next_ends, gains


@pytest.mark.parametrize("reference", ["start", "trained"])
def test_fedfomo_is_equations_3_and_4(reference: str) -> None:
    values = {"models": 3, "reference": reference}
    simulation = simulation_of(CLIENTS, values, rounds=4, local_steps=2, batch_size=2, lr=0.5)
    state = simulation.begin(stored(0.7))
    starts = [np.array([0.7, -0.7])] * 4
    ends, affinity, mixed = starts, np.zeros((4, 4)), 0
    for done in simulate.rounds(simulation, state, 0, "stacked"):
        state = done.state
        next_starts, next_ends, gains = round_of_fedfomo(starts, ends, reference, 2)
        mixed += sum(not np.allclose(a, b) for a, b in zip(next_starts, ends, strict=True))
        starts, ends, affinity = next_starts, next_ends, affinity + gains
        found = state.clients["params"]["weight"][:, :, 0].numpy()
        np.testing.assert_allclose(found, ends, rtol=0, atol=1e-12)
        found = state.clients["start"]["params"]["weight"][:, :, 0].numpy()
        np.testing.assert_allclose(found, starts, rtol=0, atol=1e-12)
    assert mixed >= 6
    np.fill_diagonal(affinity, 0)
    np.testing.assert_allclose(state.server["affinity"].numpy(), affinity, rtol=0, atol=1e-12)


def test_fedfomo_of_one_client_whose_validation_loss_falls_is_local() -> None:
    """Its own model, of weight 1, is all that it can choose."""
    client: list[Samples] = [[(1, 0), (2, 0), (0.5, 0), (1.2, 0)]]
    simulation = simulation_of(client, {}, rounds=5)
    state = trained(simulation)
    alone = trained(of("local", [client[0][:2]], rounds=5))
    view = simulation.method.views[PERSONAL](state.server, trees.take(state.clients, 0))
    expected = trees.take(alone.clients, 0)["params"]["weight"]
    torch.testing.assert_close(view["params"]["weight"], expected, rtol=0, atol=1e-14)


def test_fedfomo_without_a_better_model_begins_where_it_began_before() -> None:
    """Validation labels contradict training labels, so that each training makes it worse."""
    client: list[Samples] = [[(1, 0), (2, 0), (0.5, 1), (1.2, 1)]]
    once, often = (trained(simulation_of(client, {}, rounds=rounds)) for rounds in (1, 5))
    first, last = (state.clients["params"]["weight"] for state in (once, often))
    torch.testing.assert_close(first, last, rtol=0, atol=0)


def test_the_best_are_chosen_and_chance_takes_their_place() -> None:
    scores = torch.tensor([0.3, -1.0, 2.0, 0.0, 5.0]).double()
    is_available = torch.tensor([True, True, True, True, False])

    def choose(count: int, epsilon: float, key: int) -> tuple[list[int], list[bool]]:
        numbers, exists = epsilon_greedy(
            scores, is_available, count, torch.tensor(epsilon), torch.tensor(key)
        )
        return numbers.tolist(), exists.tolist()

    assert choose(3, 0.0, 1) == ([2, 0, 3], [True] * 3)
    assert choose(5, 0.0, 1)[1] == [True] * 4 + [False]
    firsts = first_of_many(scores, is_available, 1.0)
    np.testing.assert_allclose(firsts, [0.25, 0.25, 0.25, 0.25, 0], atol=0.04)
    best = first_of_many(scores, is_available, 0.4)[2]
    assert best == pytest.approx(0.6 + 0.4 / 4, abs=0.04)


def test_models_of_equal_scores_are_chosen_at_random() -> None:
    firsts = first_of_many(torch.zeros(4).double(), torch.ones(4, dtype=torch.bool), 0.0)
    np.testing.assert_allclose(firsts, 0.25, atol=0.04)


def first_of_many(scores: Tensor, is_available: Tensor, epsilon: float) -> np.ndarray:
    """How often each is the first, over 4,000 keys."""

    def first(key: Tensor) -> Tensor:
        return epsilon_greedy(scores, is_available, 1, torch.tensor(epsilon), key)[0][0]

    numbers = torch.vmap(first)(torch.arange(4000)).numpy()
    return np.bincount(numbers, minlength=len(scores)) / 4000
