"""FedCAC, APPLE, elastic aggregation and pFedLA once more, on a linear model of three classes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import worlds
from hand_model import Samples, of, tensor, trained
from torch import Tensor, nn
from worlds import ends, personal, shared

from fl.api import trees
from fl.engine import simulate
from fl.engine.state import State

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


# APPLE


def penalty_of(number: int, last: int, decay: str) -> float:
    """Lambda(r), from round 1 on."""
    if number > last:
        return 0.0
    progress = (number - 1) / last
    return (1 + np.cos(np.pi * progress)) / 2 if decay == "cosine" else 10 ** (-3 * progress)


def round_of_apple(
    cores: list[Model], p: np.ndarray, rates: tuple[float, float], mu: float
) -> tuple[list[Model], np.ndarray]:
    """A round of two steps, with the penalty (mu / 2) ||p - p_0||^2."""
    next_cores, next_p = [], p.copy()
    for k, samples in enumerate(CLIENTS):
        all_cores = list(cores)
        for _ in range(2):
            weights = next_p[k].copy()
            model = {
                name: sum(w * core[name] for w, core in zip(weights, all_cores, strict=True))
                for name in START
            }
            gradient = slopes(model, samples)
            products = [sum(gradient[n] @ core[n] for n in START) for core in all_cores]
            next_p[k] = weights - rates[1] * (products + mu * (weights - SIZES / SIZES.sum()))
            all_cores[k] = {
                name: w - rates[0] * weights[k] * gradient[name] for name, w in all_cores[k].items()
            }
        next_cores.append(all_cores[k])
    return next_cores, next_p


@pytest.mark.parametrize("decay", ["cosine", "exponential"])
def test_apple_trains_cores_and_their_weights(decay: str) -> None:
    values = {"eta_p": 0.2, "mu": 3.0, "until": 0.8, "decay": decay}
    simulation = of(
        *("apple", CLIENTS, values, linear, 3), rounds=4, local_steps=2, batch_size=4, lr=0.3
    )
    state = simulation.begin(stored())
    cores, p = [START] * 4, np.tile(SIZES / SIZES.sum(), (4, 1))
    for number, done in enumerate(simulate.rounds(simulation, state, 0, "stacked"), 1):
        state = done.state
        cores, p = round_of_apple(cores, p, (0.3, 0.2), 3.0 * penalty_of(number, 3, decay))
        offsets = state.clients["personal_params"]["offsets"].numpy()
        np.testing.assert_allclose(offsets + SIZES / SIZES.sum(), p, rtol=0, atol=1e-12)
        for client, core in enumerate(cores):
            assert_equal(model_of({"params": state.server["cores"]}, client), core)
            model = {
                name: sum(w * c[name] for w, c in zip(p[client], cores, strict=True))
                for name in START
            }
            mine = trees.take(state.clients, client)
            assert_equal(model_of(simulation.method.views["personal"](state.server, mine)), model)


def test_apple_of_weights_that_stay_at_the_clients_own_is_local() -> None:
    simulation = of(
        *("apple", CLIENTS, {"eta_p": 0.0}, linear, 3), rounds=2, local_steps=1, batch_size=4
    )
    state = simulation.begin(stored())
    offsets = torch.eye(4).double() - tensor(SIZES / SIZES.sum())
    clients = {**state.clients, "personal_params": {"offsets": offsets}}
    for done in simulate.rounds(simulation, replace(state, clients=clients), 0, "stacked"):
        state = done.state
    for client, samples in enumerate(CLIENTS):
        expected = trained_from(START, samples, 2, 0.1)
        assert_equal(model_of({"params": state.server["cores"]}, client), expected)


def test_a_single_client_of_apple_is_fedavg() -> None:
    alone = {"sizes": (21,), "participation": 1.0}
    [model] = personal(*ends("apple", "cnn", {"eta_p": 0.0}, **alone))
    assert worlds.distance(model, shared(*ends("fedavg", "cnn", **alone))) < 1e-15


# Elastic aggregation


def sensitivity_of(model: Model, samples: Samples, size: int, mu: float) -> Model:
    """The running mean of |d ||f||^2 / dw| over batches of a size, in order."""
    found = {name: np.zeros(3) for name in START}
    for first in range(0, len(samples), size):
        x = np.array([value for value, _ in samples[first : first + size]])
        outputs = x[:, None] * model["weight"] + model["bias"]
        gradient = {"weight": 2 * x @ outputs / len(x), "bias": 2 * outputs.mean(0)}
        found = {n: mu * omega + (1 - mu) * np.abs(gradient[n]) for n, omega in found.items()}
    return found


def test_elastic_aggregation_moves_sensitive_weights_less() -> None:
    values = {"tau": 0.3, "mu": 0.6}
    simulation = of(
        *("elastic", CLIENTS, values, linear, 3), rounds=3, local_epochs=2, batch_size=4, lr=0.3
    )
    state, model = simulation.begin(stored()), START
    for done in simulate.rounds(simulation, state, 0, "stacked"):
        ends_ = [trained_from(model, samples, 2, 0.3) for samples in CLIENTS]
        omegas = [sensitivity_of(model, samples, 4, 0.6) for samples in CLIENTS]
        next_model = {}
        for name, w in model.items():
            omega = np.stack([o[name] for o in omegas])
            zeta = 1.3 - np.average(omega, axis=0, weights=SIZES) / omega.max(0)
            mean = np.average([m[name] for m in ends_], axis=0, weights=SIZES)
            next_model[name] = w + zeta * (mean - w)
        model = next_model
        assert_equal(model_of(done.state.server), model)


def test_elastic_aggregation_takes_a_running_mean_over_batches() -> None:
    """Batches of one sample, all samples equal, so that their order does not matter."""
    samples: list[Samples] = [[(2, 1)] * 3, [(1, 0)]]
    simulation = of("elastic", samples, {"mu": 0.6}, linear, 3, rounds=1, batch_size=1)
    [done] = simulate.rounds(simulation, simulation.begin(stored()), 0, "stacked")
    ends_ = [trained_from(START, own, len(own), 0.1) for own in samples]
    omegas = [sensitivity_of(START, own, 1, 0.6) for own in samples]
    found = model_of(done.state.server)
    for name, w in START.items():
        omega = np.stack([o[name] for o in omegas])
        zeta = 1.5 - np.average(omega, axis=0, weights=[3, 1]) / omega.max(0)
        mean = np.average([m[name] for m in ends_], axis=0, weights=[3, 1])
        np.testing.assert_allclose(found[name], w + zeta * (mean - w), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("clients", "values"), [(CLIENTS, {"mu": 1.0, "tau": 0.0}), (CLIENTS[2:3], {"tau": 1.0})]
)
def test_elastic_aggregation_with_steps_of_one_is_fedavg(
    clients: list[Samples], values: dict[str, float]
) -> None:
    """No weight is sensitive and tau is 0, or a single client's tau is 1."""
    given = {"rounds": 3, "local_epochs": 2, "batch_size": 4}
    elastic = of("elastic", clients, values, linear, 3, **given)
    average = of("fedavg", clients, {}, linear, 3, **given)
    ends_ = [trained(simulation, stored()).server for simulation in (elastic, average)]
    assert worlds.distance(*ends_) < 1e-15


# pFedLA


def with_heads(state: State, bias: Tensor) -> State:
    """The state with hypernetworks whose outputs are these biases, [clients, layers, clients]."""
    hyper = state.server["hyper"]
    heads = {"weight": torch.zeros_like(hyper["heads"]["weight"]), "bias": bias}
    return replace(state, server={**state.server, "hyper": {**hyper, "heads": heads}})


def alpha_of(hyper: Any, own: int) -> list[Tensor]:
    """Weights of a client by layer, from its own hypernetwork."""
    z = hyper["embedding"]
    for number in "012":
        z = (hyper["hidden"][number]["weight"] @ z + hyper["hidden"][number]["bias"]).clamp(min=0)
    found = []
    for weight, bias in zip(hyper["heads"]["weight"], hyper["heads"]["bias"], strict=True):
        a = (weight @ z + bias).clamp(min=0)
        found.append(a / a.sum() if float(a.detach().sum()) > 0 else torch.eye(4).double()[own])
    return found


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 3))


LAYERS = [("0.weight", "0.bias"), ("1.weight", "1.bias")]


def test_pfedla_brings_each_mixture_nearer_to_what_its_client_made_of_it() -> None:
    """Mixtures, local steps and the chain rule once more, in loops; client 1 has no weight left."""
    values = {"hidden": 3, "embedding": 2, "hyper_lr": 0.5}
    simulation = of(
        *("pfedla", CLIENTS, values, two_layers, 3), rounds=3, local_steps=1, batch_size=4
    )
    # The beginning; for its first layer, client 1 gives no model any weight.
    state = simulation.begin(simulation.network.init(4))
    heads = state.server["hyper"]["heads"]
    bias = heads["bias"].clone()
    bias[1, 0] = -100.0
    server = {**state.server, "hyper": {**state.server["hyper"], "heads": {**heads, "bias": bias}}}
    state = replace(state, server=server)
    models = [trees.take(server["models"], k) for k in range(4)]
    hypers = [trees.take(server["hyper"], k) for k in range(4)]
    first = list(hypers)
    for done in simulate.rounds(simulation, state, 0, "stacked"):
        state = done.state
        next_models = []
        for k, samples in enumerate(CLIENTS):
            hyper = trees.apply(lambda w: w.detach().requires_grad_(), hypers[k])
            # What the client receives: a mixture of all models, layer by layer.
            mixed = {
                name: sum(a * model[name] for a, model in zip(alpha, models, strict=True))
                for names, alpha in zip(LAYERS, alpha_of(hyper, k), strict=True)
                for name in names
            }
            start = {name: w.detach().requires_grad_() for name, w in mixed.items()}
            # One step of SGD on it.
            x, y = (torch.tensor(v) for v in zip(*samples, strict=True))
            inner = x.double()[:, None] @ start["0.weight"].T + start["0.bias"]
            outputs = inner @ start["1.weight"].T + start["1.bias"]
            loss = -outputs.log_softmax(1)[torch.arange(len(y)), y].mean()
            slopes = torch.autograd.grad(loss, list(start.values()))
            pairs = zip(start.items(), slopes, strict=True)
            next_models.append({name: (w - 0.1 * g).detach() for (name, w), g in pairs})
            # A step down the loss of the mixture: its slope is what the client moved, reversed.
            moves = {name: (w - next_models[k][name]).detach() for name, w in start.items()}
            product = torch.stack([(w * moves[name]).sum() for name, w in mixed.items()]).sum()
            steps = torch.autograd.grad(product, trees.leaves(hyper), materialize_grads=True)
            pairs = zip(trees.leaves(hyper), steps, strict=True)
            hypers[k] = trees.unflatten(hyper, [(w - 0.5 * g).detach() for w, g in pairs])
        # The server has both, and predicts with the mixture of new models and new weights.
        models = next_models
        assert worlds.distance(state.server["models"], trees.stack(models)) < 1e-12
        assert worlds.distance(state.server["hyper"], trees.stack(hypers)) < 1e-12
        for k in range(4):
            view = simulation.method.views["personal"](state.server, trees.take(state.clients, k))
            for names, alpha in zip(LAYERS, alpha_of(hypers[k], k), strict=True):
                for name in names:
                    expected = sum(a * m[name] for a, m in zip(alpha, models, strict=True))
                    torch.testing.assert_close(view["params"][name], expected, rtol=0, atol=1e-12)
    # The weights of the mixtures are felt.
    assert worlds.distance(trees.stack(hypers), trees.stack(first)) > 1e-3


@pytest.mark.parametrize(("weights", "method"), [("own", "local"), ("equal", "fedavg")])
def test_pfedla_of_own_weights_is_local_and_of_equal_ones_fedavg(weights: str, method: str) -> None:
    """The mixtures of round 3 are the models of Local, or the mean over clients, of round 3."""
    given = {"rounds": 3, "local_epochs": 2, "batch_size": 4, "weighting": "uniform"}
    mixing = of("pfedla", CLIENTS, {"hyper_lr": 0.0}, linear, 3, **given)
    bias = torch.eye(4)[:, None] if weights == "own" else torch.ones(4, 1, 4)
    state = with_heads(mixing.begin(stored()), bias.double())
    for done in simulate.rounds(mixing, state, 0, "stacked"):
        state = done.state
    reference = of(method, CLIENTS, {}, linear, 3, **given)
    end = trained(reference, stored())
    [view] = reference.method.views.values()
    for k in range(4):
        mine = mixing.method.views["personal"](state.server, trees.take(state.clients, k))
        expected = view(end.server, trees.take(end.clients, k))
        assert worlds.distance(mine["params"], expected["params"]) < 1e-14
