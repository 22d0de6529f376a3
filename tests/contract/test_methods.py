"""What every method promises, whatever it is; a new file in ``fl/methods`` is held to it too."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import killing
import numpy as np
import planning
import pytest
import torch
import torch.nn.functional as F
import worlds
from planning import Planned
from short import SENDS_OWN, VARIANTS
from torch import Tensor, nn
from worlds import world

from fl.api import trees
from fl.api.method import declaration_of
from fl.api.recipes import VARIABLE_GROUPS
from fl.api.training import learning_rate
from fl.base import fields, identity, registry, rng
from fl.base.errors import Location
from fl.base.schema import GLOBAL, PERSONAL
from fl.cli import catalogue
from fl.engine import assembly, engine, simulate
from fl.engine.simulation import Simulation
from fl.engine.state import PhaseSchedule, State
from fl.plan import continuation
from fl.pytorch import portable
from fl.runner.stack import Stack
from fl.store import checkpoint

METHODS = [*registry.names("method"), *VARIANTS]
DECLARED = {name: declaration_of(worlds.entry(name).target) for name in METHODS}
TRAINED = [name for name in METHODS if world(name).method.passes]
"""Those that train anything: a method may also only look at a stored model."""
ALONE = [name for name in TRAINED if DECLARED[name].independent]
CENTRAL = ("finetune", "finetune-bn", "local")
"""Those that do what a loop of PyTorch does, with the run's optimizer."""

ONE_SERVER = "the clients of one run multiply by a matrix of their server in one product"
SOFTPLUS = "softplus computes the last numbers of a stack, which fill no vector, by other code"
OTHER_BITS = {
    "apple": ONE_SERVER,
    "fedgen": ONE_SERVER,
    "finetune-l2p": ONE_SERVER,
    "gpfl": ONE_SERVER,
    "fedsr": SOFTPLUS,
    "moon": SOFTPLUS,
}
"""Methods whose bits depend on the size of a stack, and why."""

every_method = pytest.mark.parametrize("method", METHODS)
every_trained_method = pytest.mark.parametrize("method", TRAINED)


def advanced(simulation: Simulation) -> State:
    """The state after round 1, so that no tree is what it began as."""
    state, _ = engine.run_round(
        simulation.method, simulation.begin(), simulation.round_schedule(1), "loop"
    )
    return state


# Backends


@every_trained_method
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_stacked_is_loop_to_rounding(method: str, model: str) -> None:
    """On a perceptron, and on convolutions with batch normalisation, whose buffers change in place.

    One seed alone: in a stack of several seeds, the server's tree is stacked, too.
    """
    simulation = world(method, model)
    loop, rows = worlds.looped(method, model)
    stacked, stacked_rows = worlds.run(simulation, "stacked")
    assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-10
    assert worlds.rows_agree(stacked_rows, rows, 1e-10)
    assert worlds.distance(worlds.tree(loop), worlds.tree(simulation.begin())) > 1e-3


@pytest.mark.parametrize("method", ["pfedme", "ditto", "perfedavg", "fedl2p"])
def test_steps_with_rates_of_their_own_are_the_same_in_a_stack(method: str) -> None:
    by_steps = {"schedule": "cosine", "schedule_by": "steps", "warmup_rounds": 2}
    for optimizer in ({}, {"optimizer": "adamw", "momentum": 0.0}):
        targets = {"label_smoothing": 0.1, "class_weights": "balanced"}
        simulation = world(method, **by_steps, **targets, **optimizer)
        loop, rows = worlds.run(simulation, "loop")
        stacked, stacked_rows = worlds.run(simulation, "stacked")
        assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-10
        assert worlds.rows_agree(stacked_rows, rows, 1e-10)


@pytest.mark.parametrize("method", ["fedfm", "scaffold"])
def test_debug_is_loop_to_the_bit(method: str) -> None:
    simulation = world(method, rounds=2)
    loop, rows = worlds.run(simulation, "loop")
    debug, debug_rows = worlds.run(simulation, "debug")
    assert worlds.same(worlds.tree(debug), worlds.tree(loop))
    assert worlds.rows_agree(debug_rows, rows, 0.0)


@every_method
def test_seeds_in_one_stack_are_the_runs_that_they_are_alone(method: str) -> None:
    seeds = (worlds.SEED, worlds.SEED + 1)
    alone = {worlds.SEED: worlds.looped(method, "cnn")}
    worlds.together({seed: world(method, "cnn", seed=seed) for seed in seeds}, alone)


@every_trained_method
def test_a_stack_of_any_size_gives_a_run_the_same_bits(method: str) -> None:
    """In portable arithmetic, for networks of linear layers, however many runs are in the stack.

    Of the three runs, two have the same samples, and the third is another draw.
    """
    keys = {"first": {}, "seed": {"seed": worlds.SEED + 1}, "draw": {"sizes": (9, 20, 4, 14)}}
    runs: dict[str, Any] = {
        name: world(method, "mlp", precision="float32", **values) for name, values in keys.items()
    }
    if not portable.is_portable():
        pytest.skip("this process computes natively")
    if runs["first"].network.layers(nn.Conv2d):
        pytest.skip("convolutions fold the clients into channels")
    joined = assembly.join_draws(runs)
    assert len({assembly.stack_of(run) for run in joined.values()}) == 1
    [*_, together] = simulate.lockstep(
        joined, {name: run.begin() for name, run in joined.items()}, 0, "stacked"
    )
    distances = []
    for name, run in runs.items():
        [*_, alone] = simulate.rounds(run, run.begin(), 0, "stacked")
        pair = worlds.tree(alone.state), worlds.tree(together[name].state)
        distances.append(worlds.distance(*pair))
        assert worlds.rows_agree(alone.rows, together[name].rows, 1e-4)
    if method in OTHER_BITS:
        assert 0 < max(distances) < 1e-5, OTHER_BITS[method]
    else:
        assert max(distances) == 0


@pytest.mark.parametrize("method", ["ditto", "fedfm", "fedsac", "fedlgd"])
def test_clients_fetched_in_small_groups_make_no_difference(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = world(method, participation=1.0, rounds=2)
    state, rows = worlds.run(simulation, "stacked")
    size = trees.nbytes(simulation.begin().server) + trees.nbytes(simulation.begin().clients) // 4
    monkeypatch.setattr(
        engine, "MAX_STACK_BYTES", engine.COPIES * size * 3
    )  # Three of four at once.
    grouped, grouped_rows = worlds.run(simulation, "stacked")
    assert worlds.distance(worlds.tree(grouped), worlds.tree(state)) < 1e-10
    assert worlds.rows_agree(grouped_rows, rows, 1e-10)


@every_method
def test_building_leaves_the_network_as_it_was(method: str) -> None:
    """Else what a second method computes would depend on the first."""
    network = world(method, "cnn").network
    assert not network._watched | network._tapped | network._surrounded
    assert not any(layer._forward_hooks for layer in network._module.modules())


# Who takes part, and in which order


@every_method
def test_what_a_round_does_depends_on_no_order_and_changes_nobody_else(method: str) -> None:
    """The state that a round is given stays as it was; so does who takes no part in it."""
    simulation = world(method, participation=1.0)
    state, plan, order = advanced(simulation), simulation.round_schedule(2), [2, 0, 3, 1]
    before = trees.apply(Tensor.clone, worlds.tree(state))
    straight, losses = engine.run_round(simulation.method, state, plan, "stacked")
    turned, turned_losses = engine.run_round(
        simulation.method, state, worlds.chosen(plan, order), "stacked"
    )
    assert worlds.distance(worlds.tree(turned), worlds.tree(straight)) < 1e-12
    torch.testing.assert_close(turned_losses, losses[order], rtol=0, atol=1e-12)
    after, _ = engine.run_round(simulation.method, state, worlds.chosen(plan, [1, 2]), "loop")
    assert worlds.same(worlds.tree(state), before)
    for client in (0, 3):
        assert worlds.same(*(trees.take(s.clients, client) for s in (state, after)))


@pytest.mark.parametrize("method", ALONE)
def test_who_trains_alone_does_not_notice_the_others(method: str) -> None:
    everybody = world(method, participation=1.0)
    two = world(method, participation=1.0, sizes=worlds.SIZES[:2])
    state, rows = worlds.run(everybody, "stacked")
    state_of_two, rows_of_two = worlds.run(two, "stacked")
    first = trees.take(state.clients, slice(0, 2))
    assert worlds.distance(state_of_two.clients, first) < 1e-12
    expected = rows[rows["client"] < 2].reset_index(drop=True)
    assert len(expected) < len(rows)
    assert worlds.rows_agree(rows_of_two, expected, 1e-12)


# What is learnt from, and what leaves a client


@every_method
def test_fills_do_not_influence_the_gradient(method: str) -> None:
    """Without batch normalisation, whatever has weight 0 might as well be anything."""
    simulation = world(method, "mlp", participation=1.0)
    if simulation.network.batch_norm:
        pytest.skip("batch statistics are over whole batches")
    plan = simulation.round_schedule(1)
    phases = [phase for phase in plan.phases if phase]
    first = [s for phase in phases for s in phase.schedules if s is not None]
    assert not first or not first[0].weight[1, 0].all(), "the small client's batches have fills"

    def other(phase: PhaseSchedule) -> PhaseSchedule:
        schedules = (
            s and replace(s, index=np.where(s.weight, s.index, 33)) for s in phase.schedules
        )
        return replace(phase, schedules=tuple(schedules))

    changed = replace(
        plan,
        phases=tuple(phase and other(phase) for phase in plan.phases),
    )
    begun = simulation.begin()
    state, losses = engine.run_round(simulation.method, begun, plan, "stacked")
    same, others = engine.run_round(simulation.method, begun, changed, "stacked")
    assert worlds.same(worlds.tree(state), worlds.tree(same))
    assert torch.equal(losses, others)


def uploads_of_a_round(simulation: Simulation) -> tuple[State, dict[str, Any]]:
    """The state after round 1, and what its clients sent, by the keys of their trees."""
    method, seen = simulation.method, {}

    def spied(server: Any, clients: Any, uploads: Any, n: Tensor) -> Any:
        seen.update(uploads)
        return method.aggregate(server, clients, uploads, n)

    state, _ = engine.run_round(
        replace(method, aggregate=spied), simulation.begin(), simulation.round_schedule(1), "loop"
    )
    return state, seen


@every_method
def test_what_a_client_keeps_is_not_sent(method: str) -> None:
    simulation = world(method, "cnn")
    state, uploads = uploads_of_a_round(simulation)
    sent, kept, on_server = (
        {name for kind in VARIABLE_GROUPS for name in worlds.names(tree.get(kind, {}))}
        for tree in (uploads, state.clients, state.server)
    )
    if method not in SENDS_OWN:
        assert not sent & kept
        assert not on_server & kept
    if method in ALONE:
        assert not sent
    assert state.clients["id"].tolist() == list(range(len(worlds.SIZES)))
    assert tuple(simulation.method.views) == tuple(worlds.entry(method).target.stages)
    for view in simulation.method.views.values():
        weights = view(state.server, trees.take(state.clients, 1))
        for kind in VARIABLE_GROUPS:
            assert set(worlds.names(weights[kind])) == set(simulation.network.names[kind])


# How it is declared


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in registry.FOLDER_BY_KIND for name in registry.names(kind)],
)
def test_every_file_says_what_it_is_and_whose(kind: str, name: str) -> None:
    if kind == "analysis":
        pytest.importorskip("matplotlib", reason="analyses draw")
    entry = registry.find(kind, name, Location("test"))
    assert re.fullmatch(r"[A-Za-z].{10,110}\.", entry.summary), entry.summary
    if kind != "partition scheme":
        assert re.search(r"\b(19|20)\d\d\b", entry.citation) or entry.citation.startswith("No ")
    said = catalogue.text_by_key(entry)
    for key in fields.fields(entry.target):
        assert len(said.get(key, "")) > 5, f"{key} is not explained in the docstring of the class"


# Stopped and resumed, through the store


@every_trained_method
def test_a_run_goes_on_from_its_checkpoint_to_the_same_bits(method: str, tmp_path: Path) -> None:
    stack = Stack.begin({"run": world(method)}, {"run": None}, "stacked")
    rounds = simulate.lockstep(stack.simulations, stack.states, 0, "stacked")
    stack.add(next(rounds))
    stack.save(tmp_path)
    [straight] = rounds
    saved, again = checkpoint.load_latest(tmp_path), {"run": world(method)}
    assert saved is not None
    [resumed] = simulate.lockstep(again, Stack.resume(saved, again).states, 1, "stacked")
    assert worlds.same(worlds.tree(resumed["run"].state), worlds.tree(straight["run"].state))
    assert worlds.rows_agree(resumed["run"].rows, straight["run"].rows, 0.0)


@every_trained_method
def test_first_rounds_do_not_depend_on_the_number_of_rounds_unless_the_code_reads_it(
    method: str,
) -> None:
    """So a run of more rounds may go on from the state of one with fewer."""
    root = identity.entry("method", worlds.entry(method).name)
    if continuation.file_that_reads_rounds([root]):
        return
    states = []
    for rounds in (2, 7):
        simulation = world(method, rounds=rounds)
        two_rounds = islice(simulate.rounds(simulation, simulation.begin(), 0, "stacked"), 2)
        states.append([worlds.tree(finished.state) for finished in two_rounds])
    assert all(map(worlds.same, *states))


@pytest.mark.parametrize("method", ["fedsac", "finetune"])
def test_resumed_is_undisturbed_to_the_bit(method: str, planned: Callable[..., Planned]) -> None:
    start = {"start": "fedavg"} if method == "finetune" else {}
    study = planned(methods={"fedavg": None, method: start})
    for store in ("whole", "broken"):
        assert study.train("fedavg", store) == 0
    assert study.train(method, "whole") == 0
    [run] = study.runs(method)
    with planning.signalled(after=3):
        assert study.train(method, "broken") == 75
    assert [path.name for path in study.checkpoints(run, "broken")] == [
        "round-000002",
        "round-000003",
    ]
    assert study.train(method, "broken") == 0
    assert study.files(run, "broken") == study.files(run, "whole")


def test_killed_is_undisturbed_to_the_bit(planned: Callable[..., Planned]) -> None:
    study = planned(methods={"local": {"optimizer": "adamw"}})
    assert study.train("local", "whole") == 0
    [run] = study.runs("local")
    child = killing.context.Process(
        target=planning.train_and_die, args=(study, "local", "broken", 5)
    )
    child.start()
    child.join(300)
    assert child.exitcode == -9
    assert [path.name for path in study.checkpoints(run, "broken")] == [
        "round-000002",
        "round-000004",
    ]
    assert study.train("local", "broken") == 0
    assert study.files(run, "broken") == study.files(run, "whole")


# Beside PyTorch


def central(simulation: Simulation, client: int, afresh: bool) -> dict[str, Tensor]:
    """The loop that a user of PyTorch writes, on a client's batches; its model's state.

    afresh: a new optimizer every round.
    """
    raw, labels, _ = worlds.data("cnn", [len(s) for s in simulation.client_data.samples["train"]])
    x, y, training = worlds.inputs(raw), torch.from_numpy(labels), simulation.training
    net = worlds.module("cnn").double()
    start = simulation.network.init(rng.torch_seed(simulation.seed, "init"))
    net.load_state_dict({**start["params"], **start["buffers"]})
    optimizer = None
    for number in range(1, training.rounds + 1):
        plan = simulation.round_schedule(number)
        if optimizer is None or afresh:
            optimizer = torch_optimizer(simulation, net)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(training, number)
        for step in range(plan.schedules[0].steps[client]):
            index = torch.from_numpy(plan.schedules[0].index[client, step])
            counts = torch.from_numpy(plan.schedules[0].weight[client, step])
            losses = F.cross_entropy(net(x[index]), y[index], reduction="none")
            optimizer.zero_grad()
            losses[counts].mean().backward()
            optimizer.step()
    state = net.state_dict()
    return {
        name: state[name] for kind in VARIABLE_GROUPS for name in simulation.network.names[kind]
    }


def torch_optimizer(simulation: Simulation, net: torch.nn.Module) -> torch.optim.Optimizer:
    training = simulation.training
    if training.optimizer == "adamw":
        return torch.optim.AdamW(net.parameters(), weight_decay=training.weight_decay)
    return torch.optim.SGD(
        net.parameters(),
        lr=training.lr,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
    )


def flat(variables: Any) -> dict[str, Tensor]:
    return {**variables["params"], **variables["buffers"]}


optimizers = pytest.mark.parametrize(
    "training",
    [
        {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01, "lr": 0.1},
        {"optimizer": "adamw", "weight_decay": 0.1, "lr": 0.01},
    ],
    ids=["sgd", "adamw"],
)


@optimizers
def test_fedavg_with_one_client_is_central_training(training: dict[str, Any]) -> None:
    simulation = world("fedavg", "cnn", sizes=(21,), participation=1.0, **training)
    state, _ = worlds.run(simulation)
    expected = central(simulation, 0, afresh=True)
    assert worlds.distance(flat(simulation.final_weights(state)["global"]), expected) < 1e-12


@optimizers
@pytest.mark.parametrize("method", CENTRAL)
def test_training_alone_is_as_many_central_trainings(method: str, training: dict[str, Any]) -> None:
    for keep in (True, False):
        simulation = world(method, "cnn", participation=1.0, **training, keep_optimizer=keep)
        state, _ = worlds.run(simulation, "stacked")
        for client in range(len(worlds.SIZES)):
            personal = simulation.method.views[PERSONAL](
                state.server, trees.take(state.clients, client)
            )
            expected = central(simulation, client, afresh=not keep)
            assert worlds.distance(flat(personal), expected) < 1e-10


@pytest.mark.parametrize("method", ["fedbn", "fedrod", "fedsac"])
def test_any_method_of_one_pass_can_keep_its_momentum(method: str) -> None:
    kept = world(method, "cnn", momentum=0.9, keep_optimizer=True)
    loop, stacked = worlds.run(kept, "loop")[0], worlds.run(kept, "stacked")[0]
    assert worlds.distance(worlds.tree(loop), worlds.tree(stacked)) < 1e-10
    afresh = worlds.run(world(method, "cnn", momentum=0.9), "stacked")[0]
    assert worlds.distance(stacked.server, afresh.server) > 1e-6


def test_fine_tuning_begins_with_what_fedavg_ended_with(planned: Callable[..., Planned]) -> None:
    study = planned(methods={"fedavg": None, "finetune": {"start": "fedavg"}})
    assert study.train("fedavg") == 0
    assert study.train("finetune") == 0
    before = study.store().metrics(study.runs("fedavg")[0])
    tuned = study.store().metrics(study.runs("finetune")[0])
    last = before[(before["round"] == 6) & (before["split"] != "train")]
    first = tuned[tuned["round"] == 0]
    assert len(last)
    assert set(first["stage"]) == {GLOBAL}
    assert set(tuned.loc[tuned["round"] > 0, "stage"]) == {PERSONAL}
    same = [last, first]
    left, right = (table.drop(columns="round").reset_index(drop=True) for table in same)
    assert left.equals(right)
