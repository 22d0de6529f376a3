"""pFedFDA beside the equations of its paper in NumPy, on a linear model of two features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hand_model import Samples, of
from torch import nn
from torch.distributions import MultivariateNormal

from fl.api import trees
from fl.base.schema import PERSONAL
from fl.engine import simulate
from fl.methods.pfedfda import GaussianMixing, discriminant

CLIENTS: list[Samples] = [
    [(1, 0), (-2, 1), (0.5, 0), (-1, 1), (2, 0), (0.2, 1)],
    [(3, 0), (1, 1), (2, 0), (-1, 1), (1.5, 0), (0.5, 0)],
    [(1, 1)],
]
SHRINKAGE = 0.2
Gaussian = tuple[np.ndarray, np.ndarray]


def two_features() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 2))


def head(gaussian: Gaussian, y: np.ndarray) -> Gaussian:
    """Weight and bias of the discriminant, with the class shares of labels."""
    means, covariance = gaussian
    shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * np.trace(covariance) / 2 * np.eye(2)
    weight = means @ np.linalg.inv(shrunk)
    shares = np.bincount(y, minlength=2) / len(y) + 1e-4
    quadratic = np.einsum("cd,cd->c", weight, means)
    return weight, np.log(shares / shares.sum()) - quadratic / 2


def log_p(classifier: Gaussian, z: np.ndarray) -> np.ndarray:
    outputs = z @ classifier[0].T + classifier[1]
    return outputs - np.log(np.exp(outputs).sum(1, keepdims=True))


def estimate(z: np.ndarray, y: np.ndarray, common: Gaussian) -> Gaussian:
    means = np.stack([z[y == c].mean(0) if (y == c).any() else common[0][c] for c in (0, 1)])
    centred = z - means[y]
    return means, centred.T @ centred / max(len(z) - 1, 1)


def mixed(beta: float, first: Gaussian, common: Gaussian) -> Gaussian:
    return tuple(beta * a + (1 - beta) * b for a, b in zip(first, common, strict=True))  # type: ignore[return-value]


def adapted(z: np.ndarray, y: np.ndarray, common: Gaussian) -> tuple[float, Gaussian]:
    """Beta by both halves, and the client's Gaussian."""
    if len(z) < 2:
        return 0.0, common
    losses = []
    for beta in np.arange(11) / 10:
        loss = 0.0
        for test in (0, 1):
            train = slice(1 - test, None, 2)
            classifier = head(mixed(beta, estimate(z[train], y[train], common), common), y)
            half = slice(test, None, 2)
            loss -= log_p(classifier, z[half])[np.arange(len(y[half])), y[half]].sum()
        losses.append(loss)
    beta = float(np.argmin(losses) / 10)
    return beta, mixed(beta, estimate(z, y, common), common)


def test_pfedfda_is_its_algorithm() -> None:
    simulation = of(
        *("pfedfda", CLIENTS, {"shrinkage": SHRINKAGE}, two_features),
        **{"rounds": 3, "local_steps": 2, "batch_size": 6},
    )
    body = np.array([[0.8], [-0.3]])
    layers = {"1.weight": torch.zeros(2, 2), "1.bias": torch.zeros(2)}
    params = {"0.weight": torch.tensor(body), **{n: t.double() for n, t in layers.items()}}
    state = simulation.begin({"params": params, "buffers": {}})
    common: Gaussian = tuple(t.numpy() for t in state.server["gaussian"].values())  # type: ignore[assignment]
    assert ((common[0] > 0) & (common[0] < 1)).all()
    # By hand, three rounds.
    betas = set()
    for finished in simulate.rounds(simulation, state, 0, "stacked"):
        state, bodies, gaussians, sizes = finished.state, [], [], []
        for samples in CLIENTS:
            x, y = (np.array(values) for values in zip(*samples, strict=True))
            # A client: two steps of the body below the head which the Gaussian gives.
            u, classifier = body.copy(), head(common, y)
            for _ in range(2):
                errors = np.exp(log_p(classifier, x[:, None] * u.T)) - np.eye(2)[y]
                u = u - 0.1 * (errors @ classifier[0]).T @ x[:, None] / len(x)
            # Its Gaussian: between its own estimate and the common one.
            beta, gaussian = adapted(x[:, None] * u.T, y, common)
            betas.add(beta)
            bodies.append(u)
            gaussians.append(gaussian)
            sizes.append(len(x))
        # The server: means weighted by samples.
        body = np.average(bodies, axis=0, weights=sizes)
        common = tuple(  # type: ignore[assignment]
            np.average(leaves, axis=0, weights=sizes) for leaves in zip(*gaussians, strict=True)
        )
    # The shares of the own estimate differ, and the server agrees.
    assert len(betas) > 2
    close: dict[str, Any] = {"rtol": 0, "atol": 1e-11}
    np.testing.assert_allclose(state.server["params"]["0.weight"], body, **close)
    for leaf, expected in zip(state.server["gaussian"].values(), common, strict=True):
        np.testing.assert_allclose(leaf, expected, **close)
    # Clients predict with a Gaussian that is adapted once more.
    view, x_test = simulation.method.views[PERSONAL], np.array([0.3, -2.0])
    for client, samples in enumerate(CLIENTS):
        variables = view(state.server, trees.take(state.clients, client))
        x, y = (np.array(values) for values in zip(*samples, strict=True))
        batch = {"x": torch.tensor(x)[:, None].double(), "y": torch.tensor(y)}
        memory = view.build_memory(variables, {"train": view.look(variables, batch)})
        outputs = view.predict(variables, memory, torch.tensor(x_test)[:, None])
        _, gaussian = adapted(x[:, None] * body.T, y, common)
        expected = np.exp(log_p(head(gaussian, y), x_test[:, None] * body.T))
        np.testing.assert_allclose(outputs.softmax(-1), expected, **close)


def test_the_discriminant_has_the_posterior_of_normal_classes() -> None:
    draw = torch.Generator().manual_seed(4)
    means, factor, z = (
        torch.randn(*shape, generator=draw, dtype=torch.float64)
        for shape in ((3, 4), (4, 4), (7, 4))
    )
    covariance, priors = factor @ factor.T + torch.eye(4), torch.tensor([0.2, 0.5, 0.3]).double()
    classifier = discriminant({"means": means, "covariance": covariance}, priors, 0.0)
    posterior = (z @ classifier["weight"].T + classifier["bias"]).softmax(1)
    densities = MultivariateNormal(means, covariance).log_prob(z[:, None]).exp() * priors
    torch.testing.assert_close(posterior, densities / densities.sum(1, keepdim=True))


def test_with_beta_zero_the_shared_gaussian_stays_and_with_one_it_is_the_clients() -> None:
    ends = {}
    for beta in (0.0, 1.0):
        simulation = of("pfedfda", CLIENTS[:1], {"beta": beta}, two_features, rounds=2)
        state = simulation.begin()
        first = dict(state.server["gaussian"])
        for finished in simulate.rounds(simulation, state, 0, "loop"):
            state = finished.state
        ends[beta] = (first, state.server)
    first, server = ends[0.0]
    assert all(torch.equal(leaf, server["gaussian"][key]) for key, leaf in first.items())
    _, server = ends[1.0]
    x, y = (np.array(values) for values in zip(*CLIENTS[0], strict=True))
    z = x[:, None] * server["params"]["0.weight"].numpy().T
    expected = estimate(z, y, (np.zeros((2, 2)), np.eye(2)))
    for leaf, value in zip(server["gaussian"].values(), expected, strict=True):
        np.testing.assert_allclose(leaf, value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("count", [0, 1])
def test_a_client_of_fewer_than_two_samples_has_the_common_gaussian(count: int) -> None:
    rule, draw = GaussianMixing(None, 0.1), torch.Generator().manual_seed(1)
    common = {"means": torch.randn(3, 2, generator=draw).double(), "covariance": torch.eye(2)}
    moments = {
        "counts": torch.tensor([[count, 0, 0], [0, 0, 0]]).double(),
        "sums": torch.ones(2, 3, 2).double() * count,
        "products": torch.ones(2, 2, 2).double() * count,
    }
    heads = rule.heads(common, moments, torch.tensor([count, 0, 0]))
    assert all(leaf.isfinite().all() for leaf in heads.values())
    mixture = rule.mixture(common, moments, torch.arange(11, 0, -1).double())
    assert all(torch.equal(mixture[key], leaf.double()) for key, leaf in common.items())
