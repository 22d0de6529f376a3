"""FedFM beside other methods: anchors that any server keeps."""

from __future__ import annotations

from typing import Any

import pytest
import worlds
from worlds import world

from fl.api import trees
from fl.base.errors import FedloomError

AT_ONCE: dict[str, Any] = {"lam": 0.5, "first": 1}
SLIDES = ("fedavgm", "fedprox", "scaffold", "feddyn", "fednova", "moon")
"""What FedFM is combined with in its paper's figure on modularity."""


@pytest.mark.parametrize("lite", [False, True])
def test_the_method_is_fedavg_with_the_term(lite: bool) -> None:
    alone, rows = worlds.run(world("fedfm", "cnn", {**AT_ONCE, "lite": lite}))
    beside, other = worlds.run(world("fedavg", "cnn", terms=[("fedfm", {**AT_ONCE, "lite": lite})]))
    assert worlds.same(worlds.tree(alone), worlds.tree(beside))
    assert worlds.rows_agree(rows, other, 0.0)


@pytest.mark.parametrize(
    ("method", "lite"), [*((name, False) for name in (*SLIDES, "fedbn", "fedrep")), ("fedbn", True)]
)
def test_it_changes_what_other_methods_train_on_both_backends(method: str, lite: bool) -> None:
    def run(backend: str, lam: float) -> tuple[Any, Any]:
        values = {**AT_ONCE, "lam": lam, "lite": lite}
        simulation = world(method, "cnn", terms=[("fedfm", values)], rounds=1 + lite)
        return worlds.run(simulation, backend)

    loop, rows = run("loop", 0.5)
    stacked, stacked_rows = run("stacked", 0.5)
    assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-10
    assert worlds.rows_agree(stacked_rows, rows, 1e-10)
    assert not worlds.rows_agree(run("loop", 0.0)[1], rows, 1e-6)
    assert not trees.leaves({"anchors": loop.server["anchors"]})[0].eq(0).all()
    kept = worlds.names(loop.clients)
    assert not [name for name in kept if "anchors" in name], "for a moment only"


def test_anchors_are_of_the_model_that_was_trained_whatever_is_uploaded() -> None:
    """FedNova uploads directions; with clients who go equally far it is FedAvg."""
    alike: dict[str, Any] = {"sizes": (8, 8), "rounds": 1, "participation": 1.0}
    terms = [("fedfm", {**AT_ONCE, "lite": True})]
    nova, _ = worlds.run(world("fednova", "cnn", terms=terms, **alike))
    average, _ = worlds.run(world("fedavg", "cnn", terms=terms, **alike))
    anchors = [{"anchors": state.server["anchors"]} for state in (nova, average)]
    assert worlds.distance(*anchors) < 1e-12


@pytest.mark.parametrize(
    ("method", "lite", "problem"),
    [
        ("cfl", False, "neither the server nor the client has a complete model"),
        ("fedamp", False, "the method sends a different tree to each client"),
        ("ditto", True, "the method trains two models. Try: choose a method that trains one"),
        ("fedproto", True, "already ends a round with a sweep over its samples"),
        ("fedfm", False, "the method has anchors already. Try: add them once"),
    ],
)
def test_methods_that_cannot_have_it_say_why(method: str, lite: bool, problem: str) -> None:
    terms = [("fedfm", {**AT_ONCE, "lite": lite})]
    with pytest.raises(FedloomError, match=problem):
        worlds.run(world(method, "cnn", terms=terms, rounds=1), "debug")
