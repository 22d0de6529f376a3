"""FedKD: two rounds of plain autograd and NumPy's singular values on its paper's equations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import worlds
from hand_model import Samples, of, trained
from torch import Tensor, nn
from worlds import ends, personal, shared

from fl.api import trees
from fl.api.method import PERSONAL_PARAMS
from fl.methods.fedkd import PROJECTION, low_rank

CLIENTS: list[Samples] = [[(1.0, 0), (2.0, 1), (0.5, 0)], [(-1.0, 1), (1.5, 0), (0.7, 1)]]
Weights = dict[str, Tensor]


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 2))


def truncated(matrix: np.ndarray, energy: float) -> np.ndarray:
    u, values, v = np.linalg.svd(matrix, full_matrices=False)
    shares = np.cumsum(values**2) / (values**2).sum()
    rank = int(np.argmax(shares >= energy)) + 1
    return (u[:, :rank] * values[:rank]) @ v[:rank]


def compressed(before: Weights, after: Weights, energy: float) -> Weights:
    result = {}
    for name, weight in after.items():
        change = (weight - before[name]).numpy()
        kept = truncated(change, energy) if change.ndim > 1 else change
        result[name] = before[name] + torch.from_numpy(kept)
    return result


def outputs(w: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
    z = F.linear(x, w["0.weight"], w["0.bias"])
    return z, F.linear(z, w["1.weight"], w["1.bias"])


def kl(target: Tensor, other: Tensor) -> Tensor:
    p = target.detach().softmax(-1)
    return (p * (p / other.softmax(-1)).log()).sum(1).mean()


def step(w: Weights, v: Weights, projection: Tensor, samples: Samples) -> tuple[Any, Any, Tensor]:
    """A step of rate .1: each model's gradient is that of its own loss."""
    x, y = (torch.from_numpy(np.array(each)) for each in zip(*samples, strict=True))
    w, v = (
        {name: leaf.detach().clone().requires_grad_() for name, leaf in model.items()}
        for model in (w, v)
    )
    projection = projection.detach().clone().requires_grad_()
    (z_w, o_w), (z_v, o_v) = (outputs(model, x[:, None]) for model in (w, v))
    ce_w, ce_v = F.cross_entropy(o_w, y), F.cross_entropy(o_v, y)
    divisor = (ce_w + ce_v).item()
    mentee = ce_w + (kl(o_v, o_w) + F.mse_loss(z_w @ projection.T, z_v.detach())) / divisor
    mentor = ce_v + (kl(o_w, o_v) + F.mse_loss((z_w @ projection.T).detach(), z_v)) / divisor
    of_mentee = torch.autograd.grad(mentee, [*w.values(), projection])
    of_mentor = torch.autograd.grad(mentor, list(v.values()))
    with torch.no_grad():
        new_w = {n: leaf - 0.1 * g for (n, leaf), g in zip(w.items(), of_mentee, strict=False)}
        new_v = {n: leaf - 0.1 * g for (n, leaf), g in zip(v.items(), of_mentor, strict=True)}
        return new_w, new_v, projection - 0.1 * of_mentee[-1]


def test_fedkd_is_its_equations_over_two_rounds() -> None:
    values = {"energy_start": 0.5, "energy_end": 0.9}
    training = {"rounds": 2, "local_steps": 3, "local_epochs": None, "batch_size": 3}
    simulation = of("fedkd", CLIENTS, values, two_layers, **training)
    variables = simulation.network.init(1)
    client = trees.take(simulation.begin(variables).clients, 0)[PERSONAL_PARAMS]
    server: Weights = dict(variables["params"])
    own = [(dict(variables["params"]), client[PROJECTION]) for _ in CLIENTS]
    ranks = []
    for energy in (0.7, 0.9):
        uploads = []
        for number, samples in enumerate(CLIENTS):
            w, (v, projection) = server, own[number]
            for _ in range(3):
                w, v, projection = step(w, v, projection, samples)
            own[number] = v, projection
            uploads.append(compressed(server, w, energy))
            ranks.append(np.linalg.matrix_rank(uploads[-1]["1.weight"] - server["1.weight"]))
        mean = {name: torch.stack([u[name] for u in uploads]).mean(0) for name in server}
        server = compressed(server, mean, energy)
    assert 1 in ranks
    state = trained(simulation, variables)
    for name, weight in server.items():
        torch.testing.assert_close(state.server["params"][name], weight, rtol=0, atol=1e-11)
    for number, (v, projection) in enumerate(own):
        found = trees.take(state.clients, number)[PERSONAL_PARAMS]
        for name, weight in {**v, PROJECTION: projection}.items():
            torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-11)


def test_fedkd_without_distillation_and_compression_is_fedavg_beside_local() -> None:
    whole = {"energy_start": 1.0, "energy_end": 1.0}
    simulation, state = ends("fedkd", "cnn", {"distillation": 0.0, **whole})
    average = shared(*ends("fedavg", "cnn"))
    assert worlds.distance(shared(simulation, state), average) < 1e-12
    alone = personal(*ends("local", "cnn", keep_optimizer=False))
    for model, expected in zip(personal(simulation, state), alone, strict=True):
        assert worlds.distance(model, expected) < 1e-14
    assert worlds.distance(shared(*ends("fedkd", "cnn", whole)), average) > 1e-5


@pytest.mark.parametrize("energy", [0.3, 0.8, 0.95, 1.0])
def test_a_matrix_keeps_the_smallest_rank_with_the_energy(energy: float) -> None:
    draw = np.random.default_rng(2)
    kernels, bias = draw.normal(size=(6, 2, 3)), draw.normal(size=4)
    tree = {"kernels": torch.from_numpy(kernels), "bias": torch.from_numpy(bias)}
    found = low_rank(tree, torch.tensor(energy).double())
    expected = kernels.reshape(6, 6) if energy == 1 else truncated(kernels.reshape(6, 6), energy)
    np.testing.assert_allclose(found["kernels"].numpy().reshape(6, 6), expected, atol=1e-13)
    assert found["bias"].tolist() == bias.tolist()


def test_a_matrix_of_one_singular_value_never_vanishes_and_zeros_stay() -> None:
    tree = {"one": torch.ones(3, 2).double(), "zero": torch.zeros(3, 2).double()}
    found = low_rank(tree, torch.tensor(0.01).double())
    torch.testing.assert_close(found["one"], tree["one"], rtol=0, atol=1e-14)
    assert not found["zero"].any()
    broken = low_rank({"w": torch.tensor([[1.0, torch.inf]])}, torch.tensor(0.9))
    assert broken["w"].isnan().all()
