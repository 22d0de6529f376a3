"""The method that the tutorial builds from its paper, by hand (`hand_model`)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hand_model import Samples, is_pair, of, s, trained
from plugging import use_methods

from fl.api import trees
from fl.api.method import PERSONAL_PARAMS
from fl.base.schema import PERSONAL

TUTORIAL = Path(__file__).parents[2] / "docs" / "guide" / "tutorial.md"
ONE: list[Samples] = [[(1, 0)]]


@pytest.fixture(autouse=True)
def _lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tutorial's file in a plugin."""
    page = TUTORIAL.read_text()
    [source] = re.findall(r"methods/my_apfl.py <<'END'\n(.*?)^END$", page, re.S | re.M)
    use_methods({"my_apfl": source}, tmp_path, monkeypatch)


def test_two_steps_are_those_of_the_paper() -> None:
    """Rate .1 from w = v = 0, alpha .5; the gradient of the loss at weights (u, -u) is -s(-2u)."""
    simulation = of("my-apfl", ONE, rounds=1, local_steps=2)
    state = trained(simulation)
    w, v = 0.1 * 0.5, 0.1 * 0.5 * 0.5
    slope = s(-2 * (0.5 * v + 0.5 * w))
    # In a pair of weights both differences count.
    alpha = 0.5 + 0.1 * slope * 2 * (v - w)
    w, v = w + 0.1 * s(-2 * w), v + 0.1 * 0.5 * slope
    assert is_pair(state.server["params"]["weight"], w)
    own = trees.take(state.clients, 0)
    assert is_pair(own[PERSONAL_PARAMS]["v"]["weight"], v)
    assert float(own[PERSONAL_PARAMS]["alpha"]) == pytest.approx(alpha, abs=1e-12)
    mixture = simulation.method.views[PERSONAL](state.server, own)
    assert is_pair(mixture["params"]["weight"], alpha * v + (1 - alpha) * w)


@pytest.mark.parametrize(("alpha", "other"), [(0.0, "fedavg"), (1.0, "local")])
def test_without_one_of_its_models_it_is_the_other(alpha: float, other: str) -> None:
    clients: list[Samples] = [[(1, 0), (2, 1)], [(3, 0)]]
    simulation = of("my-apfl", clients, {"alpha": alpha, "adapt": False}, rounds=3)
    state = trained(simulation)
    plain = of(other, clients, rounds=3)
    expected = trained(plain)
    [view] = plain.method.views.values()
    for client in range(2):
        own = trees.take(state.clients, client)
        there = view(expected.server, trees.take(expected.clients, client))
        mixture = simulation.method.views[PERSONAL](state.server, own)
        assert mixture["params"]["weight"].tolist() == there["params"]["weight"].tolist()
