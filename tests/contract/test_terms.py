"""What every loss term promises that a study can add, whatever it is; a plugin's too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import worlds
from term_worlds import CASES, LAYERS, TERMS, with_term
from worlds import world

from fl.api import trees
from fl.base import fields, registry
from fl.base.errors import FedloomError, Location
from fl.engine import engine, simulate
from fl.engine.sample_arrays import Arrays

BASES = ("fedprox", "moon", "scaffold", "mrmtl")
"""Some methods whose server has a whole model."""


ROUNDING = {"mmd-d": (1e-7, 1e-4)}
"""How near stacked and loop come in weights and in the terms' states, where it is not 1e-10: AdamW
divides gradients by their size, and so turns the rounding of those near zero into steps.
"""

every_case = pytest.mark.parametrize(
    ("term", "values"), CASES, ids=[f"{term}-{i}" for i, (term, _) in enumerate(CASES)]
)
DRIFT = [
    term
    for term in TERMS
    if "layers" in fields.fields(registry.find("term", term, Location("test")).target)
]
"""Those that compare features with the shared model's."""

every_drift_term = pytest.mark.parametrize("term", DRIFT)
every_term = pytest.mark.parametrize("term", TERMS)
every_model = pytest.mark.parametrize("model", worlds.MODELS)


def without_kernels(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A tree without the states of terms."""
    inner = {k: without_kernels(v) if isinstance(v, Mapping) else v for k, v in tree.items()}
    return {key: leaf for key, leaf in inner.items() if key != "terms"}


@every_case
def test_stacked_is_loop_to_rounding(term: str, values: dict[str, Any]) -> None:
    simulation = with_term(term, "ditto", "cnn", values, rounds=1)
    loop, rows = worlds.run(simulation, "loop")
    stacked, stacked_rows = worlds.run(simulation, "stacked")
    ends = worlds.tree(stacked), worlds.tree(loop)
    weights, kernels = ROUNDING.get(term, (1e-10, 1e-10))
    assert worlds.distance(*map(without_kernels, ends)) < weights
    assert worlds.rows_agree(stacked_rows, rows, weights)
    assert worlds.distance(*ends) < kernels


@every_term
def test_any_base_takes_it_and_trains_otherwise_for_it(term: str) -> None:
    for base in BASES:
        _, rows = worlds.run(with_term(term, base, "mlp", rounds=1), "stacked")
        _, plain = worlds.run(world(base, "mlp", rounds=1), "stacked")
        assert np.isfinite(rows["value"]).all()
        assert not worlds.rows_agree(rows, plain, 1e-6)
    nothing = dict.fromkeys(("mu", "lam", "beta", "variance", "uniformity"), 0.0)
    _, none = worlds.run(with_term(term, base, "mlp", nothing, rounds=1), "stacked")
    assert worlds.rows_agree(none, plain, 1e-10), "without weight it is not there"


@every_term
def test_a_resumed_run_gets_the_same_bits(term: str) -> None:
    simulation = with_term(term, "ditto", "mlp")
    [first, straight] = simulate.rounds(simulation, simulation.begin(), 0, "stacked")
    [last] = simulate.rounds(with_term(term, "ditto", "mlp"), first.state, 1, "stacked")
    assert worlds.same(worlds.tree(last.state), worlds.tree(straight.state))


@every_drift_term
def test_its_state_never_leaves_the_client(term: str) -> None:
    simulation = with_term(term, "fedprox", "mlp", rounds=1)
    state, _ = worlds.run(simulation, "stacked")
    assert worlds.names(state.server) == worlds.names(world("fedprox", "mlp").begin().server)


@every_drift_term
def test_features_that_are_not_finite_reach_no_state(term: str) -> None:
    simulation = with_term(term, "fedprox", "mlp", rounds=1, participation=1.0)
    raw, labels, client_data = worlds.data("mlp")
    raw[client_data.samples["train"][2]] = np.inf
    arrays = Arrays(raw, labels, worlds.NORMALISATION, dtype=torch.float64)
    simulation = replace(simulation, arrays=arrays)
    [done] = simulate.rounds(simulation, simulation.begin(), 0, "stacked")
    assert done.divergence == "the training loss of client 2 was no longer finite in round 1"
    for leaf in trees.leaves(done.state.clients.get("terms", {})):
        assert leaf.isfinite().all()
    with pytest.raises(FedloomError, match="client 2, round 1, step 0: the loss is nan"):
        engine.run_round(
            simulation.method, simulation.begin(), simulation.round_schedule(1), "debug"
        )


@pytest.mark.parametrize(
    ("method", "layers", "problem"),
    [
        ("ditto", ["body"], r"no layer 'body'. Allowed: '0' \("),
        ("local", ["1"], "terms: this method's server does not have all weights"),
        ("ifca", ["1"], "terms: this method's server does not have all weights"),
        ("perfedavg", ["1"], "perfedavg: terms are set. Allowed: none"),
    ],
)
def test_where_it_cannot_be_it_says_why(method: str, layers: list[str], problem: str) -> None:
    with pytest.raises(FedloomError, match=problem):
        worlds.run(with_term("cosine", method, "mlp", {"layers": layers}), "loop")


def test_stateless_terms_add_up() -> None:
    """A term on each of two layers is what one on both is."""
    both, _ = worlds.run(with_term("cosine", "ditto", "cnn", rounds=1), "loop")
    terms = [("cosine", {"layers": [layer], "mu": 0.5}) for layer in LAYERS["cnn"]]
    apart, _ = worlds.run(world("ditto", "cnn", terms=terms, rounds=1), "loop")
    assert worlds.distance(worlds.tree(both), worlds.tree(apart)) < 1e-10
