"""Options that follow pFedGraph's released code, which made the published baselines of FedSaC."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hand_model import (
    Samples,
    body_and_head,
    is_pair,
    mean_g,
    of,
    stored_two,
    trained,
)

from fl.api import trees
from fl.base.schema import PERSONAL
from fl.methods.fedamp import FedAMP
from fl.methods.knn_per import KNNPer

APART: list[Samples] = [[(1, 0)], [(1, 1)]]


def personal(simulation: Any, state: Any, client: int) -> Any:
    return simulation.method.views[PERSONAL](state.server, trees.take(state.clients, client))


def test_cfl_can_score_what_clients_trained_from_their_cluster() -> None:
    """Updates of +.05 and -.05 cancel: the cluster stays at 0, the clients' own models do not."""
    simulation = of("cfl", APART, {"scored": "trained"}, rounds=2)
    state = trained(simulation)
    assert is_pair(trees.take(state.server["models"], 0)["params"]["weight"], 0)
    for client, expected in ((0, 0.05), (1, -0.05)):
        assert is_pair(personal(simulation, state, client)["params"]["weight"], expected)


def test_pfedhn_can_score_what_clients_trained_from_what_was_generated() -> None:
    """A server that does not step: the second round trains what it generated in the first."""
    values = {"hidden": 3, "layers": 1, "hyper_lr": 1e-300, "hyper_weight_decay": 0}
    generated = of("pfedhn", APART, values, rounds=2)
    simulation = of("pfedhn", APART, {**values, "scored": "trained"}, rounds=2)
    before, state = trained(generated), trained(simulation)
    for client, samples in enumerate(APART):
        [(x, y)] = samples
        w = personal(generated, before, client)["params"]["weight"]
        slope = (torch.softmax(w[:, 0] * x, 0) - torch.eye(2, dtype=w.dtype)[y])[:, None] * x
        moved = personal(simulation, state, client)["params"]["weight"]
        torch.testing.assert_close(moved, w - 0.1 * slope)


def test_pfedmes_personal_model_can_be_its_copy_of_the_shared_one() -> None:
    """One step: theta = .05, and w moves to eta lambda theta = .05 * 3 * .05."""
    values = {"lam": 3.0, "steps": 1, "inner_lr": 0.1, "scored": "w"}
    simulation = of("pfedme", [[(1, 0)]], values, rounds=1, local_steps=1, lr=0.05)
    state = trained(simulation)
    assert is_pair(personal(simulation, state, 0)["params"]["weight"], 0.05 * 3 * 0.05)


def test_heurfedamp_can_compare_moves() -> None:
    """From (1, -1), models near (1, -1) are alike; their moves, .2 and -.2, are opposite."""
    models = {"w": torch.tensor([[1.2, -1.2], [0.8, -0.8], [1.2, -1.2]], dtype=torch.float64)}
    moves = trees.apply(lambda w: w - torch.tensor([1.0, -1.0], dtype=w.dtype), models)
    heuristic = FedAMP(attention="cosine", sigma=10.0, own=0.3, of="moves")
    assert heuristic.weights(models)[0].tolist() == pytest.approx([0.3, 0.35, 0.35])
    near = 1 / (1 + math.exp(-20))
    expected = [0.3, 0.7 * (1 - near), 0.7 * near]
    assert heuristic.weights(moves)[0].tolist() == pytest.approx(expected)


def test_fedamp_mixes_by_the_moves_from_the_initial_model() -> None:
    """Both begin at 0, so that moves are models: the same run."""
    values = {"attention": "cosine", "sigma": 10.0, "own": 0.3}
    models = trained(of("fedamp", APART, values, rounds=3))
    moves = trained(of("fedamp", APART, {**values, "of": "moves"}, rounds=3))
    torch.testing.assert_close(models.clients["params"], moves.clients["params"])


def test_knn_per_can_add_up_votes_and_take_their_softmax() -> None:
    """Samples at (0, 0), (1, 0) and (0, 1) of classes 0, 1, 1: squared distances 0, 1 and 1."""
    memory = {"features": torch.tensor([[0.0, 0], [1, 0], [0, 1]]), "y": torch.tensor([0, 1, 1])}
    released = KNNPer(k=3, distances="summed", votes="softmax")
    near = released.neighbours(memory, torch.zeros(1, 2), 2)
    odds = math.exp(1) / (math.exp(1) + math.exp(2 * math.exp(-1)))
    assert near[0].tolist() == pytest.approx([odds, 1 - odds])


def test_fedrep_can_count_steps_of_the_head() -> None:
    """Three steps of the head at u = 1.5, then one of the body."""
    samples = [(1, 0), (3, 1)]
    simulation = of(
        "fedrep", [samples], {"head_steps": 3}, body_and_head, rounds=1, local_steps=1, batch_size=2
    )
    state, v = trained(simulation, stored_two(1.5, 0.5)), 0.5
    for _ in range(3):
        v -= 0.1 * mean_g(v, [(1.5 * x, y) for x, y in samples])
    assert is_pair(personal(simulation, state, 0)["params"]["1.weight"], v)


def test_fedrods_balanced_head_can_stay_local() -> None:
    """The body is averaged, and each client's own balanced head moves by its own samples."""
    held: list[Samples] = [[(1, 0), (2, 1)], [(3, 0), (1, 1)]]
    simulation = of("fedrod", held, {"head": "local"}, body_and_head, rounds=1, batch_size=2)
    state = trained(simulation, stored_two(1.5, 0.5))
    assert set(simulation.method.views) == {PERSONAL}
    assert "1.weight" not in state.server["params"]
    for client, samples in enumerate(held):
        v = 0.5 - 0.1 * mean_g(0.5, [(1.5 * x, y) for x, y in samples])
        variables = simulation.method.views[PERSONAL].variables(
            state.server, trees.take(state.clients, client)
        )
        assert is_pair(variables["params"]["1.weight"], v)
