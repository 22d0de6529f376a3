"""At one value of a key, a method is FedAvg: the models after two rounds are equal."""

from __future__ import annotations

from typing import Any

import pytest
import worlds
from hand_model import Samples, is_pair, of, trained
from worlds import ends, personal, shared

from fl.api import trees

UNIFORM = {"weighting": "uniform"}


@pytest.mark.parametrize(
    ("method", "values", "training", "tolerance"),
    [
        ("fedntd", {"beta": 0.0}, {}, 0.0),
        ("fedcm", {"alpha": 1.0}, {}, 1e-15),
        ("fedexp", {"epsilon": 1e9, "scored": "last"}, {}, 1e-14),
        ("feddisco", {"a": 0.0, "b": 0.0}, {}, 1e-14),
        ("q-ffl", {"q": 0.0}, UNIFORM, 1e-12),
        ("afl", {"eta_lambda": 0.0}, UNIFORM, 1e-14),
        ("fediir", {"penalty": 0.0}, {}, 1e-14),
        ("feddg-ga", {"step": 0.0}, UNIFORM, 1e-14),
    ],
)
def test_the_shared_model_is_that_of_fedavg(
    method: str, values: dict[str, Any], training: dict[str, Any], tolerance: float
) -> None:
    average = ends("fedavg", "cnn", **training)
    reduced = ends(method, "cnn", values, **training)
    assert worlds.distance(shared(*reduced), shared(*average)) <= tolerance
    assert worlds.distance(shared(*ends(method, "cnn", **training)), shared(*average)) > 1e-6


def test_fedrs_without_a_factor_is_fedavg() -> None:
    """The second client lacks a class."""
    clients: list[Samples] = [[(1, 0), (2, 1)], [(3, 0)]]
    average = trained(of("fedavg", clients, rounds=3)).server
    without = trained(of("fedrs", clients, {"alpha": 1.0}, rounds=3)).server
    assert worlds.distance(without, average) == 0
    assert worlds.distance(trained(of("fedrs", clients, rounds=3)).server, average) > 1e-6


@pytest.mark.parametrize(
    ("method", "layers"), [("fedper", []), ("lg-fedavg", ["0", "1", "4", "5", "9"])]
)
def test_with_all_layers_shared_every_client_has_fedavgs_model(
    method: str, layers: list[str]
) -> None:
    average = shared(*ends("fedavg", "cnn"))
    for model in personal(*ends(method, "cnn", {"layers": layers})):
        assert worlds.distance(model, average) == 0


def test_fedper_and_lg_fedavg_of_the_same_layers_share_the_opposite() -> None:
    """What FedPer keeps is what LG-FedAvg sends."""
    states = {name: ends(name, "cnn")[1] for name in ("fedper", "lg-fedavg")}
    body, head = (set(states[name].server["params"]) for name in states)
    assert body and head and not body & head
    for name, state in states.items():
        [other] = set(states) - {name}
        local = set(trees.take(state.clients, 0)["params"])
        assert local == set(states[other].server["params"])


def test_fedlc_of_clients_with_equal_classes_is_fedavg() -> None:
    clients: list[Samples] = [[(1, 0), (2, 1)], [(3, 0), (1, 1)]]
    calibrated = trained(of("fedlc", clients, {"tau": 2.0}, rounds=3))
    average = trained(of("fedavg", clients, rounds=3))
    weight = average.server["params"]["weight"]
    assert worlds.distance(calibrated.server, average.server) < 1e-15
    assert not is_pair(weight, 0)
