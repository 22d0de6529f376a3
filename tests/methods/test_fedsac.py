"""FedSaC on a model of four numbers (`hand_model`), whose features are its inputs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import worlds
from hand_model import cosine, cosine_slope, of, s, tensor, trained
from torch import nn
from worlds import world

from fl.api import trees
from fl.api.method import PAYLOAD
from fl.api.recipes import VARIABLE_GROUPS
from fl.base.schema import PERSONAL
from fl.engine import engine
from fl.engine.state import State

TURN = 1.2
ALONG = np.array([1.0, 0.5]), np.array([math.cos(TURN) - 0.5 * math.sin(TURN)] * 2)
ALONG[1][1] = math.sin(TURN) + 0.5 * math.cos(TURN)
HELD: list[Any] = [
    [(tuple(length * ALONG[0]), 0) for length in (1, 2)],
    [(tuple(length * ALONG[1] + 0.3), label) for length, label in ((-1, 0), (2, 0), (1, 1))],
]
"""Two clients whose samples lie on lines at an angle of `TURN`."""


def plane() -> nn.Module:
    """z = (w x, -w x) with w and x of two numbers, if it begins so."""
    return nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False))


def step(theta: np.ndarray, samples: list[Any]) -> np.ndarray:
    """The gradient at (w, -w)."""
    down = [(s(2 * theta[:2] @ x) - (y == 0)) * np.array([*x, *np.negative(x)]) for x, y in samples]
    return np.mean(down, axis=0)


def numbers(variables: Any) -> np.ndarray:
    return np.asarray(variables["params"]["1.weight"].flatten())


ORIGIN = np.array([0.5, -0.25, -0.5, 0.25])
BEGUN = {"params": {"1.weight": tensor(ORIGIN.reshape(2, 2))}, "buffers": {}}
ALPHA, BETA, LAM = 0.9, 0.8, 0.5
VALUES = {"alpha": ALPHA, "beta": BETA, "lam": LAM, "k": 1, "until": 0.5, "alike": 1.0}


@pytest.mark.parametrize("similarity", ["moved", "weights"])
def test_fedsac_mixes_by_likeness_of_models_and_unlikeness_of_features(similarity: str) -> None:
    """Two rounds of two steps, so that the term - lam cos(theta, received) is felt.

    Row i is the projection of p_j - alpha/2 cos(angle) + beta/2 cos_ij, for two clients half of
    what is over 1 taken from both. In round 2, of two with until = .5, alpha is 0.
    """
    values = {**VALUES, "similarity": similarity}
    simulation = of("fedsac", HELD, values, plane, rounds=2, local_steps=2, batch_size=3)
    origin = ORIGIN if similarity == "moved" else np.zeros(4)
    starts, share = [ORIGIN, ORIGIN], np.array([2, 3]) / 5
    for alpha in (ALPHA, 0.0):
        # By hand: two steps of each client.
        ends = []
        for samples, received in zip(HELD, starts, strict=True):
            theta = received
            for _ in range(2):
                slope = step(theta, samples) - LAM * cosine_slope(theta, received)
                theta = theta - 0.1 * slope
            ends.append(theta)
        # The rows of the mixture.
        likeness = cosine(ends[0] - origin, ends[1] - origin)
        starts, rows = [], []
        for i in (0, 1):
            same, other = -alpha / 2 + BETA / 2, -alpha / 2 * math.cos(TURN) + BETA / 2 * likeness
            v = share + np.array([same if i == j else other for j in (0, 1)])
            first = min(max(v[0] - (v.sum() - 1) / 2, 0), 1)
            rows.append(first)
            starts.append(first * ends[0] + (1 - first) * ends[1])
        # The example is one in which both rows mix.
        assert likeness < 1
        assert rows[0] != rows[1]
        assert all(0 < row < 1 for row in rows)
    # The same in Fedloom.
    state = trained(simulation, BEGUN)
    for k in (0, 1):
        client = trees.take(state.clients, k)
        view = simulation.method.views[PERSONAL](state.server, client)
        np.testing.assert_allclose(numbers(client[PAYLOAD]), starts[k], rtol=0, atol=1e-12)
        np.testing.assert_allclose(numbers(view), ends[k], rtol=0, atol=1e-12)
    alike = float(state.server["complementarity"][0, 1])
    assert alike == pytest.approx(math.cos(TURN), abs=1e-6)


def after_one_round(**values: Any) -> State:
    simulation = world("fedsac", values=values, participation=1.0, rounds=1)
    return worlds.run(simulation)[0]


def test_where_one_client_cooperates_all_keep_their_own_models() -> None:
    state = after_one_round(collaborators=1)
    assert torch.equal(state.server["cooperation"], torch.eye(4))


def test_as_many_as_asked_are_drawn_to_cooperate_anew_in_every_round() -> None:
    simulation = world("fedsac", values={"collaborators": 2, "k": 1}, participation=1.0, rounds=6)
    state, seen = simulation.begin(), set()
    for number in range(1, 7):
        state, _ = engine.run_round(
            simulation.method, state, simulation.round_schedule(number), "stacked"
        )
        network = state.server["cooperation"]
        apart = (network == torch.eye(4)).all(1) & (network == torch.eye(4)).all(0)
        assert int(apart.sum()) >= 2
        seen.add(tuple(torch.nonzero(~apart)[:, 0].tolist()))
    assert len(seen) > 2


def test_only_directions_and_models_leave_a_client() -> None:
    """Nothing that grows with a client's samples."""
    shapes = []
    for sizes in (worlds.SIZES, tuple(9 * size for size in worlds.SIZES)):
        simulation, seen = world("fedsac", sizes=sizes, participation=1.0), {}
        method = simulation.method
        object.__setattr__(method, "aggregate", spying(method.aggregate, seen))
        engine.run_round(method, simulation.begin(), simulation.round_schedule(1), "loop")
        shapes.append({name: tuple(leaf.shape) for name, leaf in seen.items()})
    assert shapes[0] == shapes[1] == {"basis": (4, 3, 5)}


def spying(aggregate: Any, seen: dict[str, Any]) -> Any:
    def spied(server: Any, clients: Any, uploads: Any, n: Any) -> Any:
        seen.update({key: leaf for key, leaf in uploads.items() if key not in VARIABLE_GROUPS})
        return aggregate(server, clients, uploads, n)

    return spied


def test_layers_restrict_which_weights_are_compared() -> None:
    whole, head = after_one_round(), after_one_round(layers=("3",))
    assert not torch.allclose(whole.server["similarity"], head.server["similarity"])
    own = trees.take(head.clients, 0)["trained"]["params"], trees.take(head.clients, 1)["trained"]
    moved = [
        torch.cat([(params[f"3.{n}"] - head.server["origin"][f"3.{n}"]).flatten() for n in NAMES])
        for params in (own[0], own[1]["params"])
    ]
    expected = float(torch.cosine_similarity(*moved, dim=0))
    found = float(head.server["similarity"][0, 1])
    assert found == pytest.approx(1.0 if expected > 0.9 else expected, abs=1e-6)


NAMES = ("weight", "bias")
