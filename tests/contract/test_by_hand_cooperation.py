"""FedCAC beside its equations in NumPy, on a linear model of three classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contract import worlds
from contract.numbers import Samples, of, tensor
from contract.test_degenerate import ends, personal, shared
from torch import nn

from fl.api import trees
from fl.engine import simulate

CLIENTS: list[Samples] = [
    [(1, 0), (2, 1), (0.5, 2)],
    [(3, 0), (-1, 1)],
    [(1, 1), (2, 0), (1.5, 2), (-1, 0)],
    [(-2, 2), (0.5, 1)],
]
SIZES = np.array([len(samples) for samples in CLIENTS], float)
START = {"weight": np.array([0.3, -0.5, 0.9]), "bias": np.array([0.2, 0.7, -0.4])}
Model = dict[str, np.ndarray]


def linear() -> nn.Module:
    return nn.Linear(1, 3)


def stored() -> dict[str, Any]:
    weight, bias = START["weight"], START["bias"]
    return {"params": {"weight": tensor(weight[:, None]), "bias": tensor(bias)}, "buffers": {}}


def slopes(model: Model, samples: Samples) -> Model:
    """Gradient of the mean cross-entropy."""
    x, y = (np.array(values, float) for values in zip(*samples, strict=True))
    outputs = x[:, None] * model["weight"] + model["bias"]
    powers = np.exp(outputs - outputs.max(1, keepdims=True))
    of_outputs = (powers / powers.sum(1, keepdims=True) - np.eye(3)[y.astype(int)]) / len(x)
    return {"weight": x @ of_outputs, "bias": of_outputs.sum(0)}


def model_of(tree: Any, client: int | None = None) -> Model:
    leaves = {name: tree["params"][name].numpy() for name in START}
    return {name: (v if client is None else v[client]).reshape(3) for name, v in leaves.items()}


def assert_equal(found: Model, expected: Model) -> None:
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-12)


# FedCAC


def trained_from(start: Model, samples: Samples, steps: int, rate: float) -> Model:
    model = start
    for _ in range(steps):
        gradient = slopes(model, samples)
        model = {name: w - rate * gradient[name] for name, w in model.items()}
    return model


def flat(mask: Model) -> np.ndarray:
    return np.concatenate([mask[name] for name in START])


def round_of_fedcac(
    shared_model: Model, means: list[Model], masks: list[Model], count: int, progress: float
) -> tuple[Model, list[Model], list[Model]]:
    """A round with `count` critical weights in each tensor: the next mean, partners', masks."""
    models, next_masks = [], []
    for samples, mean, mask in zip(CLIENTS, means, masks, strict=True):
        start = {name: np.where(mask[name], mean[name], w) for name, w in shared_model.items()}
        model = trained_from(start, samples, 2, 0.3)
        sensitivity = {name: np.abs((model[name] - w) * model[name]) for name, w in start.items()}
        order = {name: np.argsort(-values) for name, values in sensitivity.items()}
        next_masks.append({name: np.isin(np.arange(3), o[:count]) for name, o in order.items()})
        models.append(model)
    overlaps = {
        (i, j): 1 - np.sum(flat(a) != flat(b)) / (2 * flat(a).sum())
        for i, a in enumerate(next_masks)
        for j, b in enumerate(next_masks)
        if i != j
    }
    middle, largest = np.mean(list(overlaps.values())), max(overlaps.values())
    next_means = []
    for i in range(len(CLIENTS)):
        limit = middle + progress * (largest - middle)
        partners = [i] + [j for (k, j), overlap in overlaps.items() if k == i and overlap >= limit]
        next_means.append(
            {name: np.mean([models[j][name] for j in partners], axis=0) for name in START}
        )
    mean = {
        name: np.average([model[name] for model in models], axis=0, weights=SIZES) for name in START
    }
    return mean, next_means, next_masks


@pytest.mark.parametrize(("tau", "count"), [(0.4, 1), (0.7, 2)])
def test_fedcac_puts_critical_weights_of_partners_into_the_shared_model(
    tau: float, count: int
) -> None:
    values = {"tau": tau, "beta": 3}
    simulation = of(
        *("fedcac", CLIENTS, values, linear, 3), rounds=4, local_steps=2, batch_size=4, lr=0.3
    )
    state = simulation.begin(stored())
    none = {name: np.zeros(3, bool) for name in START}
    mean, means, masks = START, [START] * 4, [none] * 4
    numbers_of_partners = set()
    for number, done in enumerate(simulate.rounds(simulation, state, 0, "stacked"), 1):
        state = done.state
        mean, means, masks = round_of_fedcac(mean, means, masks, count, number / 3)
        assert_equal(model_of(state.server), mean)
        for client, (partners, mask) in enumerate(zip(means, masks, strict=True)):
            assert_equal(model_of(state.clients["payload"], client), partners)
            expected = {name: np.where(mask[name], partners[name], mean[name]) for name in START}
            view = simulation.method.views["personal"](
                state.server, trees.take(state.clients, client)
            )
            assert_equal(model_of(view), expected)
        numbers_of_partners.add(len({partners["bias"].tobytes() for partners in means}))
    assert len(numbers_of_partners) > 1


def test_fedcac_without_critical_weights_is_fedavg() -> None:
    average = shared(*ends("fedavg", "cnn"))
    for model in personal(*ends("fedcac", "cnn", {"tau": 0.0})):
        assert worlds.distance(model, average) == 0


def test_fedcac_of_critical_weights_alone_ends_as_local_after_beta() -> None:
    """From round 2 on, each client goes on from its own weights, as all moved."""
    values = {"tau": 1.0, "beta": 1}
    simulation = of("fedcac", CLIENTS, values, linear, 3, rounds=3, local_steps=1, batch_size=4)
    state = simulation.begin(stored())
    models: list[Model] = []
    for number, done in enumerate(simulate.rounds(simulation, state, 0, "stacked"), 1):
        state = done.state
        if number > 1:
            for client, samples in enumerate(CLIENTS):
                expected = trained_from(models[client], samples, 1, 0.1)
                assert_equal(model_of(state.clients["payload"], client), expected)
        models = [model_of(state.clients["payload"], client) for client in range(4)]
