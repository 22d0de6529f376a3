"""Floco beside the equations of its paper and its released projection in NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import worlds
from hand_model import Samples, of, tensor
from worlds import ends, personal, shared

from fl.api import trees
from fl.base.schema import PERSONAL
from fl.blocks.solution_simplex import draw_near
from fl.engine import simulate
from fl.engine.state import PhaseSchedule
from fl.methods.floco import client_points

CLIENTS: list[Samples] = [[(1, 0), (2, 1)], [(3, 1)], [(0.5, 0), (-1, 1)]]
ENDPOINTS = np.array([[0.4, -0.1], [-0.3, 0.8], [0.2, 0.1]])
YES = torch.tensor(True)


def test_floco_of_one_endpoint_is_fedavg() -> None:
    average = shared(*ends("fedavg", "cnn"))
    simplex = ends("floco", "cnn", {"endpoints": 1})
    for model in (shared(*simplex), *personal(*simplex)):
        assert worlds.distance(model, average) < 1e-13
    assert worlds.distance(shared(*ends("floco", "cnn", {"endpoints": 2})), average) > 1e-3


def trained_endpoints(
    endpoints: np.ndarray, phase: PhaseSchedule, points: np.ndarray, has_region: bool
) -> list[np.ndarray]:
    """Endpoints [M, 2] of each client after its steps: h <- h_m - eta alpha_m grad at the mix."""
    schedule = phase.schedules[0]
    assert schedule is not None
    keys = schedule.keys()
    assert keys is not None
    results = []
    for row, client in enumerate(phase.clients.tolist()):
        x, y = (np.array(values, float) for values in zip(*CLIENTS[client], strict=True))
        heads = endpoints.copy()
        for step in range(schedule.steps[row]):
            key, point = torch.tensor(keys[row, step, 0]), torch.from_numpy(points[client])
            alpha = draw_near(key, point, torch.tensor(has_region), 0.3).numpy()
            outputs = x[:, None] * (alpha @ heads)
            powers = np.exp(outputs - outputs.max(1, keepdims=True))
            errors = powers / powers.sum(1, keepdims=True) - np.eye(2)[y.astype(int)]
            slope = (errors * x[:, None]).mean(0)
            heads = heads - 0.1 * alpha[:, None] * slope
        results.append(heads)
    return results


def released_points(rows: np.ndarray, count: int) -> np.ndarray:
    """`project_clients` of dennis-grinwald/floco, a25b3a1, with its PCA by a decomposition."""
    centred = rows - rows.mean(0)
    u, sizes, v = np.linalg.svd(centred, full_matrices=False)
    first = [np.flatnonzero(np.abs(row) > np.abs(row).max() - 1e-9)[0] for row in v]
    signs = np.sign(v[np.arange(len(v)), first])
    kappas = (u * sizes * signs)[:, :count]
    kappas = np.pad(kappas, ((0, 0), (0, count - kappas.shape[1])))
    lowest, best = np.inf, kappas
    for z in np.linspace(1e-4, 1, 1000):
        ordered = np.sort(kappas, axis=1)[:, ::-1]
        cumulated = np.cumsum(ordered, axis=1) - z
        index = np.arange(count) + 1
        support = np.count_nonzero(ordered - cumulated / index > 0, axis=1)
        threshold = cumulated[np.arange(len(kappas)), support - 1] / support
        betas = np.maximum(kappas - threshold[:, None], 0)
        betas = betas / betas.sum(axis=1, keepdims=True)
        distances = np.linalg.norm(betas[:, None] - betas[None], axis=2)
        pairs = np.maximum(distances[np.triu_indices(len(betas), 1)], 1e-4)
        energy = -math.log(len(pairs)) + math.log((1 / pairs**2).sum())
        if energy < lowest:
            lowest, best = energy, betas
    return best


def test_floco_is_its_algorithm() -> None:
    """In the second of two rounds all clients get points, from training of that round's model."""
    simulation = of(
        *("floco", CLIENTS, {"endpoints": 3, "rho": 0.3}),
        **{"rounds": 2, "local_steps": 3, "batch_size": 2},
    )
    state = simulation.begin({"params": {"weight": tensor(ENDPOINTS[0])[:, None]}, "buffers": {}})
    others = {"weight": tensor(ENDPOINTS[1:])[:, :, None]}
    state.server["shared_params"] = others  # type: ignore[index]
    endpoints, points = ENDPOINTS, np.full((3, 3), 1 / 3)
    sizes = [len(samples) for samples in CLIENTS]
    for finished in simulate.rounds(simulation, state, 0, "stacked"):
        state, plan = finished.state, simulation.round_schedule(finished.number)
        early = plan.phases[0]
        assert (early is None) == (finished.number == 1)
        if early is not None:
            rows = trained_endpoints(endpoints, early, points, has_region=False)
            points = released_points(np.stack([heads.ravel() for heads in rows]), 3)
        trained = trained_endpoints(endpoints, plan.last_phase, points, early is not None)
        endpoints = np.average(trained, axis=0, weights=sizes)
    np.testing.assert_allclose(state.server["points"], points, rtol=0, atol=1e-9)
    assert len(np.unique(points.round(6), axis=0)) == 3
    server = state.server
    found = torch.cat([server["params"]["weight"][None], server["shared_params"]["weight"]])
    np.testing.assert_allclose(found[:, :, 0], endpoints, rtol=0, atol=1e-9)
    for client in range(3):
        model = simulation.method.views[PERSONAL](server, trees.take(state.clients, client))
        expected = points[client] @ endpoints
        np.testing.assert_allclose(model["params"]["weight"][:, 0], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("clients", [2, 7])
def test_points_are_the_released_projection_in_any_order(clients: int) -> None:
    draw = torch.Generator().manual_seed(1)
    rows = torch.randn(clients, 6, generator=draw, dtype=torch.float64) / 10
    order = torch.randperm(clients, generator=draw)
    points = client_points({"heads": rows[order]}, order, 4)
    np.testing.assert_allclose(points, released_points(rows.numpy(), 4)[order], rtol=0, atol=1e-9)


def test_draws_stay_in_the_simplex_and_within_the_radius() -> None:
    point = tensor([0.7, 0.3, 0.0])
    keys = torch.arange(400)
    near = torch.stack([draw_near(key, point, YES, 0.2) for key in keys])
    assert float(near.min()) >= 0
    torch.testing.assert_close(near.sum(1), torch.ones(400).double())
    distances = (near - point).abs().sum(1)
    assert 0.19 < float(distances.max()) <= 0.2 + 1e-12
    anywhere = torch.stack([draw_near(key, point, ~YES, 0.2) for key in keys])
    # The mean of a coordinate is 1/3, with a standard error of .012.
    torch.testing.assert_close(
        anywhere.mean(0), torch.full((3,), 1 / 3).double(), rtol=0, atol=0.05
    )
    assert torch.equal(draw_near(keys[0], point, YES, 0.0), point)
