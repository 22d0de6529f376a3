"""What every selection promises: it trains, selects who is there, and goes on from a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from worlds import SEED, SIZES, distance, entry, run, same, together, tree, world

from fl.api import trees
from fl.api.participation import DeviceTable, Presence
from fl.base import plugins, registry
from fl.base.errors import FedloomError, Location
from fl.base.registry import find
from fl.base.schema import GLOBAL
from fl.engine import simulate
from fl.engine.assembly import sibling
from fl.engine.evaluate import ViewOutputs
from fl.engine.run_setup import MethodComponents
from fl.engine.simulation import Simulation
from fl.store.checkpoint import load_tree, save_tree

SELECTIONS: dict[str, list[dict[str, Any]]] = {
    "active": [{"left_out": 0.25}],
    "by-size": [{}],
    "divfl": [{"sample": 0.5}, {"gradients": "last"}],
    "fedcs": [{"deadline": 2.5}],
    "loss-proportional": [{}, {"losses": "last"}],
    "oort": [{"window": 1}],
    "power-of-choice": [{"candidates": 3}, {"candidates": 3, "losses": "last"}],
    "tifl": [{"tiers": 2, "interval": 1}],
}
"""Values under which each of them is felt."""

NEED_DEVICES = ("fedcs", "tifl")
OF_FEDLOOM = {*SELECTIONS}
SELECTIONS |= {
    c.name: [{}]
    for c in registry.list_documentation("selection")
    if not c.file.is_relative_to(plugins.FL)
}

every = pytest.mark.parametrize(
    ("name", "values"), [(name, values) for name, given in SELECTIONS.items() for values in given]
)

WEIGHTS = 6 * 5 + 5 + 5 * 3 + 3
"""Of the model of `worlds`, in bytes of 8."""


@dataclass(frozen=True)
class Devices:
    """Devices on which the clients take about 1, 2, 3 and 4 seconds."""

    presence: Presence | None = None

    def build(self, context: Any) -> DeviceTable:
        bytes_a_second = 2 * 8 * WEIGHTS / np.array([1.0, 2.0, 3.0, 4.0])
        ones = np.ones(context.clients)
        return DeviceTable(1e30 * ones, bytes_a_second, bytes_a_second, 0 * ones, self.presence)


def with_selection(
    name: str,
    values: dict[str, Any],
    method: str = "fedavg",
    devices: Devices | None = Devices(),
    seed: int = SEED,
    **training: Any,
) -> Simulation:
    """A run of a small world in which two of four clients are selected."""
    made = world(method, **{"rounds": 3, "participation": 0.5, **training})
    found, location = find("selection", name, Location("test")), Location("test")
    selection = found.target(**found.parse(values, location))
    method_class = entry(method).target
    components = MethodComponents(
        method_class(), devices=(devices,) if devices else (), selection=(selection,)
    )
    other = sibling(made, components, seed)
    assert isinstance(other, Simulation)
    return other


def test_all_are_here() -> None:
    assert sorted(SELECTIONS) == registry.names("selection")


@every
@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_it_trains_alike_one_by_one_and_in_a_stack(
    name: str, values: dict[str, Any], method: str
) -> None:
    simulation = with_selection(name, values, method)
    (one, rows), (other, other_rows) = run(simulation, "loop"), run(simulation, "stacked")
    assert distance(tree(one), tree(other)) < 1e-10
    assert distance(one.participation, other.participation) < 1e-10
    pd.testing.assert_frame_equal(rows, other_rows, rtol=1e-8)


@every
def test_draws_train_in_one_stack_as_they_do_alone(name: str, values: dict[str, Any]) -> None:
    """Also if different numbers of clients are selected."""
    together({seed: with_selection(name, values, seed=seed) for seed in (1, 2)})


@every
def test_it_goes_on_from_a_checkpoint_with_the_same_clients(
    name: str, values: dict[str, Any], tmp_path: Path
) -> None:
    simulation = with_selection(name, values)
    states = [done.state for done in simulate.rounds(simulation, simulation.begin(), 0, "stacked")]
    save_tree(states[0].participation, tmp_path / "memory")
    kept = replace(states[0], participation=load_tree(tmp_path / "memory"))
    rest = [done.state for done in simulate.rounds(simulation, kept, 1, "stacked")]
    for state, again in zip(states[1:], rest, strict=True):
        assert same(tree(state), tree(again))
        assert same(state.participation, again.participation)


@every
def test_it_selects_those_that_are_there(name: str, values: dict[str, Any]) -> None:
    """Clients 0 and 1 are away for the first hour, and 2 and 3 for the second."""
    there = Presence(
        np.arange(4), np.array([3600.0, 3600, 0, 0]), np.repeat([7200.0, 3600], 2), 7200.0
    )
    simulation = with_selection(name, values, devices=Devices(there), rounds=2)
    state = simulation.begin()
    schedule = simulation.participation.schedule(simulation, 1, state)
    assert {*schedule.clients.tolist()} <= {2, 3}
    later = {**state.participation, "seconds": torch.tensor(3600.0, dtype=torch.float64)}
    schedule = simulation.participation.schedule(simulation, 2, replace(state, participation=later))
    assert {*schedule.clients.tolist()} <= {0, 1}


@every
def test_its_memory_is_a_tree_of_tensors_for_all_clients(name: str, values: dict[str, Any]) -> None:
    memory = with_selection(name, values).begin().participation["memory"]
    assert all(isinstance(leaf, torch.Tensor) for leaf in trees.leaves(memory))


@every
def test_without_devices_it_trains_or_says_that_it_needs_them(
    name: str, values: dict[str, Any]
) -> None:
    if name in NEED_DEVICES:
        with pytest.raises(FedloomError, match="selection") as caught:
            with_selection(name, values, devices=None)
        assert "devices" in caught.value.advice
        return
    run(with_selection(name, values, devices=None, rounds=2))


def test_only_questions_need_a_shared_model() -> None:
    """FedRep has none."""
    with pytest.raises(FedloomError, match="selection"):
        with_selection("loss-proportional", {}, "fedrep")
    run(with_selection("loss-proportional", {"losses": "last"}, "fedrep", rounds=2))


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_a_gradient_is_that_of_the_mean_loss(model: str) -> None:
    """Of a client with more samples than are evaluated together, too."""
    run_ = world("fedavg", model)
    state, samples = run_.begin(), run_.client_data.samples_of("train", 2)
    few = replace(run_.task, chunk=3)
    view = run_.method.views[GLOBAL]
    models = [ViewOutputs(view, False, run_, state, run_.client_data, t) for t in (run_.task, few)]
    whole, in_parts = (models_.gradient(2, samples) for models_ in models)
    step = torch.cat([leaf.flatten() for leaf in trees.leaves(state.server["params"])])
    batch = run_.arrays.batch(torch.from_numpy(samples), torch.ones(len(samples)))

    def loss(params: trees.Tree) -> torch.Tensor:
        outputs = run_.network.eval(params, state.server["buffers"], batch["x"]).outputs
        return torch.nn.functional.cross_entropy(outputs, batch["y"])

    slopes = torch.func.grad(loss)(state.server["params"])
    by_hand = torch.cat([leaf.flatten() for leaf in trees.leaves(slopes)])
    assert whole.shape == step.shape
    assert distance({"": whole}, {"": by_hand}) < 1e-12
    assert distance({"": in_parts}, {"": by_hand}) < 1e-12


def test_gradients_cost_an_upload_of_each_who_is_asked() -> None:
    """In round 1 all four clients are asked, and two of them train; then only these two.

    A message takes client k (k + 1) / 2 seconds. All wait 4 seconds for answers.
    """
    asked = with_selection("divfl", {})
    last = with_selection("divfl", {"gradients": "last"})
    state = last.begin()
    for run_ in (asked, last):
        schedule = run_.participation.schedule(run_, 1, run_.begin())
        assert schedule.times.bytes_up == (4 + 2) * 8 * WEIGHTS
        assert schedule.times.bytes_down == 4 * 8 * WEIGHTS
        slowest = (int(schedule.clients.max()) + 1) / 2
        assert schedule.times.end == pytest.approx(4 + slowest)
    [done, *_] = simulate.rounds(last, state, 0, "loop")
    times = last.participation.schedule(last, 2, done.state).times
    assert times.bytes_up == (2 + 2) * 8 * WEIGHTS
    assert times.bytes_down == 2 * 8 * WEIGHTS


def test_questions_cost_time_and_bytes() -> None:
    """Asking three clients makes a round longer and sends the model once more to one of them."""
    asked = with_selection("power-of-choice", {"candidates": 3})
    last = with_selection("power-of-choice", {"candidates": 3, "losses": "last"})
    times = [r.participation.schedule(r, 1, r.begin()).times for r in (asked, last)]
    assert len(SIZES) == 4
    assert times[0].bytes_down == times[1].bytes_down * 3 / 2
    assert times[0].bytes_up == times[1].bytes_up + 3 * 4 - 2 * 4
