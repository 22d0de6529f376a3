"""MoFedSAM, FedGAMMA, FedSpeed, FedLESAM and FML: reductions, and steps by arithmetic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import worlds
from hand_model import Samples, g, is_pair, of, s, trained
from worlds import ends, shared

from fl.api import trees
from fl.api.method import PERSONAL_PARAMS
from fl.methods.fml import divergence

EVEN: list[Samples] = [[(1, 0)], [(3, 1)]]
ONE: list[Samples] = [[(1, 0)]]


@pytest.mark.parametrize(
    ("method", "values", "other", "others"),
    [
        ("mofedsam", {"rho": 0.0, "alpha": 0.3}, "fedcm", {"alpha": 0.3}),
        ("mofedsam", {"rho": 0.05, "alpha": 1.0}, "fedsam", {"rho": 0.05}),
        ("fedgamma", {"rho": 0.0}, "scaffold", {}),
        ("fedlesam", {"rho": 0.0}, "fedavg", {}),
        ("fedlesam", {"rho": 0.0, "direction": "server"}, "fedavg", {}),
    ],
)
def test_without_what_it_adds_a_method_is_another(
    method: str, values: dict[str, Any], other: str, others: dict[str, Any]
) -> None:
    """The model without batch normalisation, whose statistics a second look moves once more."""
    plain = shared(*ends(other, "mlp", others, momentum=0.0))
    reduced = shared(*ends(method, "mlp", values, momentum=0.0))
    whole = shared(*ends(method, "mlp", momentum=0.0))
    names = plain["params"].keys() & reduced["params"].keys()
    largest = max(float((reduced["params"][n] - plain["params"][n]).abs().max()) for n in names)
    assert largest < 1e-13
    assert max(float((whole["params"][n] - plain["params"][n]).abs().max()) for n in names) > 1e-6


def perturbed_g(w: float, x: float, y: int, rho: float) -> float:
    """The gradient at the worst point: a pair of weights moves rho along its direction."""
    return g(w + math.copysign(rho / math.sqrt(2), g(w, x, y)), x, y)


@pytest.mark.parametrize("alpha", [1.0, 0.4])
def test_fedspeed_corrects_each_client_by_what_it_has_moved(alpha: float) -> None:
    rho, lam, w = 0.2, 0.5, 0.1
    values = {"rho": rho, "lam": lam, "alpha": alpha}
    state = trained(of("fedspeed", EVEN, values, rounds=2, local_steps=2), begin=w)
    duals = [0.0, 0.0]
    for _ in range(2):
        sent = []
        for k, [(x, y)] in enumerate(EVEN):
            own = w
            for _ in range(2):
                slope = alpha * perturbed_g(own, x, y, rho) + (1 - alpha) * g(own, x, y)
                own -= 0.1 * (slope + lam * (own - w + duals[k]))
            duals[k] += own - w
            sent.append(own + duals[k])
        w = float(np.mean(sent))
    assert is_pair(state.server["params"]["weight"], w)
    for k, dual in enumerate(duals):
        assert is_pair(trees.take(state.clients, k)["dual"]["weight"], dual)


@pytest.mark.parametrize("method", ["fedspeed", "fedsmoo"])
def test_dual_variables_count_clients_alike_whatever_their_samples(method: str) -> None:
    uneven: list[Samples] = [[(1, 0)] * 3, [(3, 1)]]
    even, other = (
        trained(of(method, clients, rounds=2, local_steps=1, batch_size=3), begin=0.1).server
        for clients in (EVEN, uneven)
    )
    assert worlds.distance(even["params"], other["params"]) < 1e-12


@pytest.mark.parametrize("direction", ["client", "server"])
def test_fedlesam_looks_towards_the_model_of_before(direction: str) -> None:
    """From round 2 on, the gradient is taken rho nearer to the previous shared model."""
    rho, w = 0.2, 0.3
    values = {"rho": rho, "direction": direction}
    state = trained(of("fedlesam", EVEN, values, rounds=3, local_steps=1), begin=w)
    old = w
    for _ in range(3):
        step = math.copysign(rho / math.sqrt(2), old - w) if old != w else 0.0
        slopes = [g(w + step, x, y) for [(x, y)] in EVEN]
        old, w = w, w - 0.1 * float(np.mean(slopes))
    assert is_pair(state.server["params"]["weight"], w)


def test_fedgamma_has_control_variates_of_perturbed_gradients() -> None:
    rho, w = 0.2, 0.1
    state = trained(of("fedgamma", EVEN, {"rho": rho}, rounds=1, local_steps=1), begin=w)
    slopes = [perturbed_g(w, x, y, rho) for [(x, y)] in EVEN]
    assert is_pair(state.server["params"]["weight"], w - 0.1 * float(np.mean(slopes)))
    for k, slope in enumerate(slopes):
        assert is_pair(trees.take(state.clients, k)["control"]["weight"], slope)


@pytest.mark.parametrize(("key", "other"), [("beta", "fedavg"), ("alpha", "local")])
def test_fml_with_labels_alone_is_fedavg_beside_local(key: str, other: str) -> None:
    state = trained(of("fml", EVEN, {key: 1.0}, rounds=3))
    plain = trained(of(other, EVEN, rounds=3))
    if other == "fedavg":
        assert worlds.distance(state.server["params"], plain.server["params"]) < 1e-15
    else:
        own = state.clients[PERSONAL_PARAMS]
        assert worlds.distance(own, plain.clients["params"]) < 1e-15


def test_fml_teaches_both_models_by_the_other() -> None:
    """In round 2 the shared model is the mean and the private one is not, alpha and beta .5."""
    state = trained(of("fml", EVEN, rounds=2, local_steps=1))
    private = [-0.1 * 0.5 * g(0, x, y) for [(x, y)] in EVEN]
    w, ends_of_shared, ends_of_private = float(np.mean(private)), [], []
    for v, [(x, y)] in zip(private, EVEN, strict=True):
        gap = (s(2 * w * x) - s(2 * v * x)) * x
        ends_of_shared.append(w - 0.1 * 0.5 * (g(w, x, y) + gap))
        ends_of_private.append(v - 0.1 * 0.5 * (g(v, x, y) - gap))
    assert is_pair(state.server["params"]["weight"], float(np.mean(ends_of_shared)))
    for k, end in enumerate(ends_of_private):
        assert is_pair(trees.take(state.clients, k)[PERSONAL_PARAMS]["weight"], end)


def test_the_divergence_is_summed_over_classes_and_its_teacher_is_fixed() -> None:
    p = torch.tensor([[0.7, 0.2, 0.1]]).double().log().requires_grad_()
    q = torch.tensor([[0.5, 0.25, 0.25]]).double().log().requires_grad_()
    value = divergence(p, q, {"weight": torch.ones(1).double()})
    expected = 0.7 * math.log(1.4) + 0.2 * math.log(0.8) + 0.1 * math.log(0.4)
    assert float(value.detach()) == pytest.approx(expected, abs=1e-7)
    value.backward()
    assert p.grad is None and q.grad is not None


def test_fedsmoo_agrees_on_a_perturbation() -> None:
    """Two rounds of one step: pairs of weights, so that norms are root 2 times a component."""
    rho, lam, w, root = 0.2, 0.5, 0.1, math.sqrt(2)
    clients: list[Samples] = [*EVEN, [(2, 1)]]
    values = {"rho": rho, "lam": lam}
    state = trained(of("fedsmoo", clients, values, rounds=2, local_steps=1), begin=w)
    duals, mus, common = [0.0] * 3, [0.0] * 3, 0.0
    for _ in range(2):
        sent = []
        for k, [(x, y)] in enumerate(clients):
            d = g(w, x, y) - mus[k] - common
            e = math.copysign(rho / root, d)
            own = w - 0.1 * (g(w + e, x, y) + lam * duals[k])
            mus[k] += e - common
            duals[k] += own - w
            sent.append(own + duals[k])
        w, mean = float(np.mean(sent)), float(np.mean(mus))
        common = math.copysign(rho / root, mean)
    assert is_pair(state.server["params"]["weight"], w)
    assert is_pair(state.server["perturbation"]["weight"], common)
