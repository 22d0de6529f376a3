"""FedEM beside the equations of its paper in NumPy, on a linear model of one feature."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import worlds
from hand_model import Samples, of, stored, trained
from worlds import ends, personal, shared

from fl.api import trees
from fl.base.schema import PERSONAL
from fl.engine import simulate

CLIENTS: list[Samples] = [[(1, 0), (2, 1), (0.5, 0)], [(3, 0)], [(1, 1), (2, 0), (1.5, 1), (-1, 0)]]


def probabilities(models: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Softmax of x times two weights, [models, n, 2], for models [models, 2]."""
    outputs = models[:, None] * x[None, :, None]
    powers = np.exp(outputs - outputs.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def round_of_fedem(
    models: np.ndarray, mixtures: list[np.ndarray], steps: int, rate: float
) -> tuple[np.ndarray, list[np.ndarray]]:
    """A round of algorithm 1, with whole data in each step."""
    next_mixtures, ends_, sizes = [], [], []
    for samples, pi in zip(CLIENTS, mixtures, strict=True):
        x, y = (np.array(values, float) for values in zip(*samples, strict=True))
        labels = y.astype(int)
        likelihood = probabilities(models, x)[:, np.arange(len(x)), labels]
        q = pi[:, None] * likelihood / (pi[:, None] * likelihood).sum(0)
        next_mixtures.append(q.mean(1))
        w = models.copy()
        for _ in range(steps):
            slopes = (probabilities(w, x) - np.eye(2)[labels]) * x[None, :, None]
            w = w - rate * (q[:, :, None] * slopes).mean(1)
        ends_.append(w)
        sizes.append(len(x))
    return np.average(ends_, axis=0, weights=sizes), next_mixtures


def models_of(server: Any) -> np.ndarray:
    return np.stack([model["params"]["weight"].numpy()[:, 0] for model in server.values()])


@pytest.mark.parametrize("steps", [1, 3])
def test_fedem_is_algorithm_1(steps: int) -> None:
    simulation = of("fedem", CLIENTS, rounds=3, local_steps=steps, batch_size=4)
    state = simulation.begin(stored(0.7))
    models, mixtures = models_of(state.server), [np.full(3, 1 / 3)] * 3
    assert np.abs(models - models[[1, 2, 0]]).min() > 1e-3
    for done in simulate.rounds(simulation, state, 0, "stacked"):
        state = done.state
        models, mixtures = round_of_fedem(models, mixtures, steps, 0.1)
    np.testing.assert_allclose(models_of(state.server), models, rtol=0, atol=1e-12)
    np.testing.assert_allclose(state.clients["mixture"].numpy(), mixtures, rtol=0, atol=1e-12)
    view = simulation.method.views[PERSONAL]
    x = np.array([0.3, -2.0])
    for client, pi in enumerate(mixtures):
        variables = view(state.server, trees.take(state.clients, client))
        outputs = view.predict(variables, {}, torch.from_numpy(x)[:, None])
        expected = np.tensordot(pi, probabilities(models, x), 1)
        np.testing.assert_allclose(outputs.softmax(-1).numpy(), expected, rtol=0, atol=1e-12)


def test_fedem_of_one_model_is_fedavg() -> None:
    average = shared(*ends("fedavg", "cnn"))
    for model in personal(*ends("fedem", "cnn", {"models": 1})):
        assert worlds.distance({kind: model[kind] for kind in average}, average) == 0


def test_fedem_separates_clients_that_contradict_each_other() -> None:
    clients: list[Samples] = [[(1, 0)], [(1, 1)], [(2, 0)], [(2, 1)]]
    simulation = of("fedem", clients, {"models": 2}, rounds=80, lr=0.5)
    state = trained(simulation, begin=0.1)
    main = state.clients["mixture"].argmax(1).tolist()
    assert main[0] == main[2] != main[1] == main[3]
    assert float(state.clients["mixture"].amax(1).min()) > 0.9
