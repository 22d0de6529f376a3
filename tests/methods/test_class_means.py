"""FedGH, FedTGP, FD, FedPCL, CCVR and FedETF by arithmetic (`hand_model`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import worlds
from hand_model import Samples, body_and_head, g, is_pair, of, s, stored_two, trained
from torch import Tensor, nn

from fl.api import trees
from fl.api.method import BuildContext
from fl.api.network import Network
from fl.api.training import Training
from fl.base.schema import GLOBAL, PERSONAL
from fl.blocks.fixed_heads import simplex_etf
from fl.engine import simulate
from fl.methods.ccvr import CCVR
from fl.methods.fd import targets
from fl.methods.fedetf import logits
from fl.methods.fedtgp import FedTGP

BOTH: list[Samples] = [[(1, 0), (2, 1)], [(3, 0)]]


def personal(simulation: Any, state: Any, client: int) -> Any:
    return simulation.method.views[PERSONAL](state.server, trees.take(state.clients, client))


# FedGH


def test_fedgh_trains_the_head_on_each_clients_class_means() -> None:
    """Three class means: of client 0 for both classes, of client 1 for class 0; one step of .5."""
    values = {"server_steps": 1, "server_lr": 0.5}
    simulation = of("fedgh", BOTH, values, body_and_head, rounds=1, local_steps=1)
    state = trained(simulation, stored_two(0.5, 0.4))
    bodies = []
    for samples in BOTH:
        slopes = [2 * 0.4 * x * (s(0.4 * x) if y else -s(-0.4 * x)) for x, y in samples]
        bodies.append(0.5 - 0.1 * float(np.mean(slopes)))
    means = [(bodies[0] * 1, 0), (bodies[0] * 2, 1), (bodies[1] * 3, 0)]
    slope = float(np.mean([g(0.4, z, y) for z, y in means]))
    for client, body in enumerate(bodies):
        model = personal(simulation, state, client)["params"]
        assert float(model["0.weight"]) == pytest.approx(body, abs=1e-12)
        assert is_pair(model["1.weight"], 0.4 - 0.5 * slope)


# FedTGP


def test_fedtgp_takes_the_largest_gap_of_a_class_to_its_nearest_as_margin() -> None:
    """Means of classes over clients: (0, 0), (3, 4), (0, 1); nobody holds the last."""
    means = torch.zeros(2, 4, 2).double()
    means[:, 1] = torch.tensor([[3.0, 3.0], [3.0, 5.0]])
    means[0, 2] = torch.tensor([0.0, 1.0])
    counts = torch.tensor([[1.0, 1, 1, 0], [2, 3, 0, 0]])
    uploads = {"means": means, "counts": counts}
    # Class 1 at (3, 4) is farthest from its nearest, (0, 1).
    assert float(FedTGP().margin_of(uploads)) == pytest.approx(math.sqrt(18))
    assert float(FedTGP(margin=2.0).margin_of(uploads)) == 2


def test_fedtgp_without_a_term_trains_as_local_and_predicts_by_prototypes() -> None:
    values = {"lam": 0.0, "server_steps": 3}
    clients: list[Samples] = [[(1, 0), (2, 1)], [(3, 0)]]
    simulation = of("fedtgp", clients, values, rounds=2)
    state, alone = trained(simulation), trained(of("local", clients, rounds=2))
    for client in range(2):
        model, own = (trees.take(each.clients, client)["params"] for each in (state, alone))
        assert worlds.distance(model, own) < 1e-15
    variables = personal(simulation, state, 0)
    outputs = simulation.method.views[PERSONAL].predict(
        variables, {}, torch.tensor([[2.0]]).double()
    )
    expected = -(2.0 - variables["anchors"][:, 0]).abs()
    torch.testing.assert_close(outputs[0], expected, rtol=0, atol=1e-12)


# FD


def test_fd_without_a_weight_is_local() -> None:
    state, alone = (
        trained(of(*each, rounds=3)) for each in (("fd", BOTH, {"gamma": 0.0}), ("local", BOTH))
    )
    assert worlds.distance(state.clients["params"], alone.clients["params"]) == 0


def test_fd_learns_from_the_other_clients_of_a_class() -> None:
    """Class 0 is held by both, class 1 by client 0 alone, which has no target for it."""
    state = trained(of("fd", BOTH, rounds=1, local_steps=1))
    after = [trees.take(state.clients, k)["params"]["weight"][0, 0].item() for k in range(2)]
    mine = [trees.take(state.clients, k)["own_outputs"] for k in range(2)]
    first, second = (targets(state.server["others"], own) for own in mine)
    p = s(2 * after[1] * 3)
    assert first[0].tolist() == pytest.approx([p, 1 - p])
    assert first[1].tolist() == [0, 0]
    p = s(2 * after[0] * 1)
    assert second[0].tolist() == pytest.approx([p, 1 - p])
    again = trained(of("fd", BOTH, {"gamma": 0.5}, rounds=2, local_steps=1))
    w = after[1]
    distilled = (s(2 * w * 3) - p) * 3
    expected = w - 0.1 * (g(w, 3, 0) + 0.5 * distilled)
    assert trees.take(again.clients, 1)["params"]["weight"][0, 0].item() == pytest.approx(expected)


# FedPCL


def three_features() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 3, bias=False))


def unit(x: list[float], weight: Tensor, bias: Tensor) -> Tensor:
    z = torch.tensor(x).double()[:, None] * weight[:, 0] + bias
    return z / z.square().sum(1, keepdim=True).sqrt()


def mean_contrast(z: Tensor, y: list[int], own: dict[int, Tensor], tau: float) -> Tensor:
    losses = []
    for feature, label in zip(z, y, strict=True):
        terms = {c: torch.exp(feature @ p / tau) for c, p in own.items()}
        losses.append(-torch.log(terms[label] / sum(terms.values())))
    return torch.stack(losses).mean()


def test_fedpcl_contrasts_samples_with_everybodys_prototypes() -> None:
    """Both contrasts once more in loops over samples, clients and classes; gaps are filled."""
    clients: list[Samples] = [[(1, 0), (2, 1), (-1, 0)], [(3, 2), (-1, 1)], [(0.5, 0), (-2, 2)]]
    tau, steps = 0.4, 2
    simulation = of(
        *("fedpcl", clients, {"tau": tau}, three_features, 3),
        **{"rounds": 3, "local_steps": steps, "batch_size": 3},
    )
    draw = torch.Generator().manual_seed(2)
    names = {"0.weight": (3, 1), "0.bias": (3,), "1.weight": (3, 3)}
    start = {
        name: torch.randn(shape, generator=draw, dtype=torch.float64)
        for name, shape in names.items()
    }
    state = simulation.begin({"params": start, "buffers": {}})
    # By hand beside Fedloom, round by round.
    bodies = [[start["0.weight"], start["0.bias"]] for _ in clients]
    sets: list[dict[int, Tensor]] = []
    for done in simulate.rounds(simulation, state, 0, "stacked"):
        state = done.state
        # The prototypes of the round before; in the first round there are none.
        means = {
            c: torch.stack([own[c] for own in sets if c in own]).mean(0) for c in range(3) if sets
        }
        for k, samples in enumerate(clients):
            x, y = map(list, zip(*samples, strict=True))
            # Steps of a client: the mean prototypes, and those of each client with gaps filled.
            for _ in range(steps if sets else 0):
                body = [w.detach().requires_grad_() for w in bodies[k]]
                z = unit(x, *body)
                loss = mean_contrast(z, y, means, tau)
                for own in sets:
                    loss = loss + mean_contrast(z, y, {**means, **own}, tau) / len(sets)
                slopes = torch.autograd.grad(loss, body)
                bodies[k] = [w.detach() - 0.1 * g for w, g in zip(body, slopes, strict=True)]
        # New prototypes: means of a class over what the trained body gives.
        sets = []
        for k, samples in enumerate(clients):
            x, y = map(list, zip(*samples, strict=True))
            z = unit(x, *bodies[k])
            sets.append({c: z[[label == c for label in y]].mean(0) for c in set(y)})
        # The bodies agree.
        for k, body in enumerate(bodies):
            variables = personal(simulation, state, k)
            for name, expected in zip(names, [*body, start["1.weight"]], strict=True):
                torch.testing.assert_close(variables["params"][name], expected, rtol=0, atol=1e-12)
    # A prediction is the nearest of a client's own prototypes.
    view = simulation.method.views[PERSONAL]
    for k, own in enumerate(sets):
        outputs = view.predict(personal(simulation, state, k), {}, torch.tensor([[0.7]]).double())
        z = unit([0.7], *bodies[k])[0]
        nearest = min(own, key=lambda c: float((z - own[c]).square().sum()))
        assert int(outputs.argmax()) == nearest


def test_fedpcl_scores_a_client_without_prototypes_by_the_means() -> None:
    simulation = of(
        *("fedpcl", [[(1, 0), (-1, 1)], [(2, 0), (-2, 1)]], None, three_features),
        **{"rounds": 1, "participation": 0.5},
    )
    state = trained(simulation, simulation.network.init(3))
    [absent] = [k for k in range(2) if not state.server["prototypes"][k].any()]
    own = personal(simulation, state, absent)["prototypes"]
    assert torch.equal(own, state.server["anchors"])
    assert torch.equal(own, state.server["prototypes"][1 - absent])


# CCVR


def test_ccvr_draws_from_the_mean_and_covariance_of_the_pooled_features() -> None:
    draw = np.random.default_rng(5)
    z, y = draw.normal(size=(60, 3)) @ draw.normal(size=(3, 3)), np.array([0] * 25 + [1] * 34 + [2])
    totals = {
        "counts": torch.tensor([25.0, 34, 1]),
        "sums": torch.tensor(np.stack([z[y == c].sum(0) for c in range(3)])),
        "products": torch.tensor(np.stack([(z[y == c].T @ z[y == c]).ravel() for c in range(3)])),
    }
    features, weight = CCVR(samples=200_000).draw_features(totals, seed=0)
    assert weight.tolist() == [1, 1, 0]
    for c in (0, 1):
        found = features[c].numpy()
        spread = np.sqrt(np.diag(np.cov(z[y == c].T)).max())
        assert np.abs(found.mean(0) - z[y == c].mean(0)).max() < 0.01 * spread
        assert np.abs(np.cov(found.T) - np.cov(z[y == c].T)).max() < 0.02 * spread**2


def test_ccvr_changes_the_head_alone_and_lowers_the_loss_of_balanced_features() -> None:
    clients: list[Samples] = [[(1.0, 0), (1.2, 0), (0.8, 0)], [(-1.0, 1), (-0.9, 1), (-1.1, 1)]]
    simulation = of("ccvr", clients, {"head_lr": 0.5}, body_and_head, rounds=1)
    state = trained(simulation, stored_two(0.5, -0.1))
    model = simulation.method.views[GLOBAL](state.server, None)["params"]
    assert float(model["0.weight"]) == 0.5
    assert float(model["1.weight"][0]) > 0.5 > 0 > float(model["1.weight"][1])


# FedETF


def test_classes_of_the_fixed_head_have_equal_and_largest_angles() -> None:
    network = Network(lambda: torch.nn.Linear(6, 4), torch.float64)
    context = BuildContext(network, Training(rounds=1, local_epochs=1), 4, 1, seed=3)
    head = simplex_etf(context, network.init(0))
    cosines = head["weight"] @ head["weight"].T
    expected = torch.full((4, 4), -1 / 3, dtype=torch.float64).fill_diagonal_(1)
    torch.testing.assert_close(cosines, expected, rtol=0, atol=1e-12)
    assert head["bias"].tolist() == [0] * 4


def test_fedetf_trains_body_and_scale_by_the_balanced_softmax() -> None:
    """Two features, so that two classes have a frame; one step of autograd on the same loss."""

    def two_layers() -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Linear(1, 2, bias=False), torch.nn.Linear(2, 2, bias=False)
        )

    samples: Samples = [(1.0, 0), (2.0, 0), (0.5, 1)]
    simulation = of("fedetf", [samples], {"scale": 3.0}, two_layers, rounds=1, batch_size=3)
    variables = simulation.network.init(1)
    state = trained(simulation, variables)
    body = variables["params"]["0.weight"].clone().requires_grad_()
    scale = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    x, y = (torch.tensor(each) for each in zip(*samples, strict=True))
    outputs = logits(x.double()[:, None] @ body.T, state.server["fixed_head"]["1.weight"], scale)
    counts = torch.tensor([2.0, 1.0], dtype=torch.float64)
    F.cross_entropy(outputs + counts.log(), y).backward()
    assert body.grad is not None and scale.grad is not None
    moved = state.server["params"]["0.weight"]
    torch.testing.assert_close(moved, (body - 0.1 * body.grad).detach(), rtol=0, atol=1e-12)
    assert float(state.server["shared_params"]["scale"]) == pytest.approx(
        3.0 - 0.1 * float(scale.grad), abs=1e-12
    )
    assert set(state.server["params"]) == {"0.weight"}
