"""What every alteration of features promises that a study can add, a plugin's too."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import worlds
from alteration_worlds import LAYERS, NAMES, altered
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn.modules.module import register_module_forward_hook
from worlds import world

from fl.api import trees
from fl.api.alteration import ALTERATION_STATES, Alteration
from fl.api.method import BuildContext, Pass, single_pass
from fl.api.recipes import recipe
from fl.api.term import Batch
from fl.api.trees import Tree
from fl.engine import compiled, engine, simulate
from fl.engine.simulation import Simulation
from fl.methods.perfedavg import PerFedAvg
from fl.pytorch import keyed

NONE: dict[str, dict[str, Any]] = {
    "dac-sc": {"p": 0.0},
    "moex": {"p": 0.0},
    "mixstyle": {"p": 0.0},
}
"""Values under which it changes nothing, where there are such."""

BASES = (
    "fedavg",
    "ditto",
    "scaffold",
    "moon",
    "fedrod",
    "pfedme",
    "fedrep",
    "fedproto",
    "perfedavg",
)
"""Methods of one pass and of several, with terms, models and parameters beside the network's."""

every = pytest.mark.parametrize("name", NAMES)


def counting(simulation: Simulation) -> Simulation:
    """The simulation as FedAvg with an alteration whose state decides what it does: features are
    multiplied by a running mean of what they were before and by a number of the batch's keys.
    """

    def start(variables: Tree) -> dict[str, Any]:
        return {"scale": torch.ones((), dtype=torch.float64)}

    def apply(
        layer: str, features: Tensor, batch: Batch, state: Tree
    ) -> tuple[Tensor, dict[str, Any]]:
        drawn = 0.5 + keyed.uniform(batch["key"], 0).reshape(-1, 1, 1, 1)
        return features * drawn * state["scale"], {"size": features.detach().abs().mean()}

    def adapt(state: Tree, seen: Tree) -> dict[str, Any]:
        met = torch.stack([seen[layer]["size"] for layer in LAYERS]).mean(0)
        return {"scale": 0.9 * state["scale"] + 0.1 * met}

    made = Alteration("counting", LAYERS, apply, start, adapt)
    context = BuildContext(
        simulation.network, simulation.training, worlds.CLASSES, simulation.client_data.clients
    )
    return replace(simulation, method=recipe(replace(context, alterations=(made,))))


def simulations(**more: Any) -> list[Simulation]:
    """Each that is found, and one with a state."""
    return [altered(name, **more) for name in NAMES] + [counting(world("fedavg", "cnn", **more))]


KINDS = [*NAMES, "counting"]
every_kind = pytest.mark.parametrize("which", range(len(KINDS)), ids=KINDS)


@every_kind
def test_stacked_is_loop_to_rounding(which: int) -> None:
    simulation = simulations(rounds=2)[which]
    loop, rows = worlds.run(simulation, "loop")
    stacked, stacked_rows = worlds.run(simulation, "stacked")
    assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-10
    assert worlds.rows_agree(stacked_rows, rows, 1e-10)


@every_kind
def test_channels_may_come_last(which: int) -> None:
    """As in a stack of plain layers in float32."""
    simulation = simulations(rounds=1, precision="float32")[which]
    assert simulation.network.folds
    ends = [worlds.tree(worlds.run(simulation, name)[0]) for name in ("stacked", "loop")]
    assert worlds.distance(*ends) < 1e-3


@pytest.mark.parametrize("base", BASES)
def test_any_base_takes_one_and_trains_otherwise_for_it(base: str) -> None:
    simulation = altered("moex", base, rounds=1)
    loop, rows = worlds.run(simulation, "loop")
    stacked, _ = worlds.run(simulation, "stacked")
    assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-9
    _, plain = worlds.run(world(base, "cnn", rounds=1), "loop")
    assert np.isfinite(rows["value"]).all()
    assert not worlds.rows_agree(rows, plain, 1e-6)


@pytest.mark.parametrize("name", NONE)
def test_where_it_changes_nothing_the_run_is_the_plain_one(name: str) -> None:
    state, rows = worlds.run(altered(name, values=NONE[name], rounds=1), "stacked")
    plain, plain_rows = worlds.run(world("fedavg", "cnn", rounds=1), "stacked")
    # The plain run computes gradients of neighbouring layers at once, and may round otherwise.
    assert worlds.distance(worlds.tree(state), worlds.tree(plain)) < 1e-12
    assert worlds.rows_agree(rows, plain_rows, 1e-12)


def test_seeds_trained_together_and_resumed_are_those_trained_apart() -> None:
    runs = {seed: counting(world("fedavg", "cnn", rounds=2, seed=seed)) for seed in (5, 6)}
    first, second = worlds.together(runs)
    [last] = simulate.rounds(runs[5], first[5].state, 1, "stacked")
    assert worlds.distance(worlds.tree(last.state), worlds.tree(second[5].state)) < 1e-12


@every_kind
def test_who_else_takes_part_and_in_which_order_does_not_matter(which: int) -> None:
    simulation = simulations(rounds=1, participation=1.0)[which]
    plan, order = simulation.round_schedule(1), np.array([2, 0, 3])
    some = replace(plan, phases=(plan.last_phase.take(order),))
    losses, others = (
        engine.run_round(simulation.method, simulation.begin(), p, "stacked")[1]
        for p in (plan, some)
    )
    assert torch.allclose(losses[order], others, rtol=0, atol=1e-10)


@every
def test_fills_do_not_influence_other_samples(name: str) -> None:
    """Up to the first batch normalisation, whatever has weight 0 might as well be anything."""
    simulation = altered(name, rounds=1, participation=1.0)
    pass_, schedule = simulation.method.passes[0], simulation.round_schedule(1).schedules[0]
    assert isinstance(pass_, Pass) and schedule is not None and schedule.key is not None
    index, weight, key = schedule.index[1, 0], schedule.weight[1, 0], schedule.keys()
    assert not weight.all(), "the small client's batches have fills"
    state, seen = simulation.begin(), list[Tensor]()

    def convolved(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(layer, nn.Conv2d) and layer.in_channels == 1:
            seen.append(output.detach())

    work = pass_.begin(state.server, state.client(1, "cpu"))
    for places in (index, np.where(weight, index, 33)):
        batch = simulation.arrays.batch(*map(torch.from_numpy, (places, weight, key[1, 0])))
        hook = register_module_forward_hook(convolved)
        pass_.loss(state.server, work, batch)
        hook.remove()
    first, other = (seen[i][torch.from_numpy(weight)] for i in (-2, -1))
    assert torch.equal(first, other)


def test_evaluation_is_not_altered() -> None:
    simulation = counting(world("fedavg", "cnn"))
    state, plain = simulation.begin(), world("fedavg", "cnn")
    assert worlds.rows_agree(simulation.evaluate(state, 1), plain.evaluate(plain.begin(), 1), 0.0)


def test_perfedavg_alters_each_half_once_and_adapts_to_the_second() -> None:
    simulation, met = world("perfedavg", "cnn", rounds=1, participation=1.0), list[Tensor]()

    def apply(
        layer: str, features: Tensor, batch: Batch, state: Tree
    ) -> tuple[Tensor, dict[str, Any]]:
        met.append(batch["key"])
        return features * 1.5, {"key": batch["key"].sum()}

    made = Alteration("noting", LAYERS[:1], apply, lambda variables: {"key": torch.zeros(())},
                      lambda state, seen: {"key": seen[LAYERS[0]]["key"]})  # fmt: skip
    context = BuildContext(simulation.network, simulation.training, worlds.CLASSES, 4)
    method = PerFedAvg().build(replace(context, alterations=(made,)))
    simulation = replace(simulation, method=method)
    pass_, schedule, state = (
        single_pass(method),
        simulation.round_schedule(1).schedules[0],
        simulation.begin(),
    )
    assert schedule is not None and schedule.key is not None
    rows = (schedule.index[0, 0], schedule.weight[0, 0], schedule.keys()[0, 0])
    batch = simulation.arrays.batch(*map(torch.from_numpy, rows))
    work = pass_.begin(state.server, state.client(0, "cpu"))
    _, aux = pass_.loss(state.server, work, batch)
    inner, outer = (
        keyed.derive_keys(batch["key"][i::2], keyed.stream_number(f"noting {LAYERS[0]}"))
        for i in (0, 1)
    )
    assert len(met) == 2 and torch.equal(met[0], inner) and torch.equal(met[1], outer)
    after = pass_.update(state.server, work, work["params"], aux, 0.0)
    assert after[ALTERATION_STATES]["noting"]["key"] == outer.sum()


@pytest.mark.skipif(
    not compiled.is_available(torch.device("cpu")), reason="torch.compile needs a C++ compiler"
)
@pytest.mark.parametrize(("which", "how"), [(NAMES.index("mixstyle"), "eager"), (-1, "aot_eager")])
def test_it_is_compiled(which: int, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In programs of one step, as far as they are captured; what has a state, as far as gradients
    are traced.
    """
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=how))
    monkeypatch.setattr(compiled, "STEPS_PER_PROGRAM", 1)
    short = {"rounds": 1, "local_epochs": 1, "momentum": 0.0, "sizes": (16, 16)}
    simulation = simulations(**short)[which]
    torch._dynamo.reset()
    counters.clear()
    ends = [worlds.tree(worlds.run(simulation, name)[0]) for name in ("compiled", "loop")]
    assert worlds.distance(*ends) < 1e-10
    assert counters["stats"]["unique_graphs"] == 1, "no break in it"


def test_a_state_adapts_and_stays_with_the_client() -> None:
    simulation = counting(world("fedavg", "cnn", rounds=1, participation=0.5))
    state, _ = worlds.run(simulation, "loop")
    scale = state.clients[ALTERATION_STATES]["counting"]["scale"]
    took = torch.isin(torch.arange(4), simulation.round_schedule(1).clients)
    assert (scale[~took] == 1).all()
    assert (scale[took] != 1).all()
    assert len(scale[took].unique()) == int(took.sum()), "each its own"
    assert worlds.names(state.server) == worlds.names(world("fedavg", "cnn").begin().server)
    assert all(leaf.isfinite().all() for leaf in trees.leaves(state.clients))
