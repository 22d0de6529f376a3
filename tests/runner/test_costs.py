"""Costs of runs: bytes worked out by hand from the sizes of trees, operations, kept state."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
import worlds
from torch import Tensor

from fl.api import trees
from fl.api.method import Pass, Phase, Refresh, Sampling, ServerWork, Sweep
from fl.api.trees import Tree
from fl.base import registry
from fl.engine.scheduling import Scheduler
from fl.engine.simulation import Simulation
from fl.runner import costs
from fl.store.run_record import Costs, UnknownCosts


def world(*choices: Any, **training: Any) -> Simulation:
    """As `fl.engine.assembly` makes it: with a network that has been tried."""
    made = worlds.world(*choices, **training)
    made.network.probe(made.arrays.inputs(torch.zeros(1, dtype=torch.int64)))
    return made


def sizes(simulation: Simulation) -> tuple[int, int]:
    """Bytes of the model's parameters and of its buffers, counters included."""
    made = simulation.network.init(0)
    return trees.nbytes(made["params"]), trees.nbytes(made["buffers"])


def of(method: str, values: dict[str, Any] | None = None, **training: Any) -> costs.Costs:
    simulation = world(method, "cnn", values, **training)
    return costs.measure(simulation, simulation.begin())


PARAMS, BUFFERS = sizes(world("fedavg", "cnn"))
MODEL = PARAMS + BUFFERS
FEATURES = 4
"""Of the small convolutional network, in float64."""
NORMALISED = 4 * (3 + 4) * 8 + 2 * 8
"""Weight, bias, mean and variance of its two layers' channels, and a counter of each layer."""
ANCHORS = worlds.CLASSES * FEATURES * 8
COUNTERS = 2 * 8
"""Of the batches that its normalising layers have seen, which no model in evaluation reads."""


def test_fedavg_costs_two_models_a_round() -> None:
    assert BUFFERS > 0
    found = of("fedavg", rounds=7)
    assert found.traffic == [[7, MODEL, MODEL]]
    assert found.bytes_down + found.bytes_up == 2 * MODEL
    assert (found.participants, found.state_client, found.state_server) == (3, 0, MODEL)


@pytest.mark.parametrize(
    ("method", "values", "down", "up"),
    [
        ("local", {}, 0, 0),
        ("scaffold", {}, 2 * PARAMS + BUFFERS, 2 * PARAMS + BUFFERS),
        ("fedbn", {}, MODEL - NORMALISED, MODEL - NORMALISED),
        ("fedamp", {}, PARAMS, PARAMS),
        ("pfedgraph", {"regulariser": "models"}, MODEL + PARAMS, MODEL),
        ("fedproto", {}, ANCHORS, ANCHORS + worlds.CLASSES * 8),
        ("fedfm", {"lite": True}, MODEL + ANCHORS, MODEL + ANCHORS + worlds.CLASSES * 8),
        ("fednova", {}, MODEL, MODEL + 8),
    ],
)
def test_bytes_are_those_worked_out_by_hand(
    method: str, values: dict[str, Any], down: int, up: int
) -> None:
    assert of(method, values).traffic == [[2, down, up]]


def test_bytes_up_are_those_of_the_messages_of_a_wire() -> None:
    """What is rounded has 4 bits, and of the whole one float; counters go as they are."""
    numbers, counters = (MODEL - 2 * 8) // 8, 2 * 8
    simulation = world(
        "fedavg", "cnn", wire={"quantize": {"bits": 4}, "label-flip": {"share": 0.5}}
    )
    found = costs.measure(simulation, simulation.begin())
    assert found.traffic == [[2, MODEL, -(-(4 * numbers + 32) // 8) + counters]]
    assert (found.clients, found.state_server) == (4, MODEL)
    simulation = world("fedavg", "cnn", wire={"top-k": {"share": 0.5}})
    found = costs.measure(simulation, simulation.begin())
    sent, places = round(numbers / 2), math.ceil(math.log2(numbers))
    assert found.traffic == [[2, MODEL, -(-sent * (64 + places) // 8) + counters]]
    assert found.state_client == 8 * numbers, "what was not sent"


@pytest.mark.parametrize(
    ("method", "memory"),
    [
        ("fedavg", MODEL),
        ("fedprox", MODEL + PARAMS),
        ("feddyn", MODEL + 2 * PARAMS),
        ("moon", 3 * MODEL - 2 * COUNTERS),
        ("fedfm", MODEL + ANCHORS),
    ],
)
def test_memory_is_what_a_step_reads_beside_its_optimizers_state(method: str, memory: int) -> None:
    assert of(method, momentum=0.9).memory_client == memory


def test_fedfm_sends_its_model_once_a_round_and_anchors_twice_from_round_start_on() -> None:
    found = of("fedfm", {"first": 3}, rounds=5)
    first = MODEL + ANCHORS
    # What the first phase sends goes out again as renewed anchors only.
    assert found.traffic == [
        [2, first, MODEL],
        [3, first + ANCHORS, MODEL + ANCHORS + worlds.CLASSES * 8],
    ]
    assert found.bytes_down == pytest.approx((2 * first + 3 * (first + ANCHORS)) / 5)


def test_a_run_that_ended_early_costs_its_completed_rounds() -> None:
    """FedFM without anchors in two rounds; the run stops after the third of five."""
    simulation = world("fedfm", "cnn", {"first": 3}, rounds=5)
    planned = costs.measure(simulation, simulation.begin())
    found = costs.measure(simulation, simulation.begin(), 3)
    first = MODEL + ANCHORS
    later = [first + ANCHORS, MODEL + ANCHORS + worlds.CLASSES * 8]
    assert found.traffic == [[2, first, MODEL], [1, *later]]
    assert found.bytes_down == pytest.approx((2 * first + later[0]) / 3)
    shorter = world("fedfm", "cnn", {"first": 3}, rounds=3)
    assert found == costs.measure(shorter, shorter.begin()) != planned


@pytest.mark.parametrize("method", registry.names("method"))
def test_costs_are_finite_and_the_same_wherever_a_run_stands(method: str) -> None:
    simulation = world(method)
    begun = costs.measure_or_explain(simulation, simulation.begin())
    assert isinstance(begun, Costs)
    numbers = [value for key, value in asdict(begun).items() if key != "traffic"]
    assert all(math.isfinite(number) and number >= 0 for number in numbers)
    assert sum(rounds for rounds, *_ in begun.traffic) == simulation.training.rounds
    assert bool(begun.flops) == any(phase.passes for phase in simulation.method.phases)
    state, _ = worlds.run(simulation, "stacked")
    before = trees.apply(Tensor.clone, worlds.tree(state))
    assert costs.measure_or_explain(simulation, state) == begun
    assert worlds.same(worlds.tree(state), before)


def test_operations_are_those_of_matrix_products_over_all_steps() -> None:
    simulation = world("fedavg", participation=1.0)
    inputs, hidden, classes, batch = 6, 5, worlds.CLASSES, 8
    forward = 2 * batch * (inputs * hidden + hidden * classes)
    # Backward: as much for weights, and for what went into the second layer.
    step = 2 * forward + 2 * batch * hidden * classes
    steps = [2 * -(-size // batch) for size in worlds.SIZES]
    found = costs.measure(simulation, simulation.begin())
    assert found.flops == step * sum(steps) / len(steps)


def test_clients_with_as_many_samples_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [world("fedavg", sizes=(size,)) for size in (9, 20)]
    each = [costs.measure(run, run.begin()).flops for run in runs]
    drawn: list[int] = []
    draw = Scheduler._schedule

    def noted(self: Scheduler, pass_: Any, clients: Any, *rest: Any) -> Any:
        drawn.append(len(clients))
        return draw(self, pass_, clients, *rest)

    monkeypatch.setattr(Scheduler, "_schedule", noted)
    run = world("fedavg", sizes=(9, 20, 9, 9, 20, 9), participation=0.2)
    assert costs.measure(run, run.begin()).flops == (4 * each[0] + 2 * each[1]) / 6
    # Some clients have no samples to validate on, so that there are four kinds; one takes part.
    assert drawn == [4, 1]


def test_the_servers_own_steps_are_counted_in_the_rounds_that_have_them() -> None:
    rounds, every, steps = 5, 2, 3
    keys: dict[str, Any] = {"images": 1, "real": 2, "warmup": 0, "initial": "noise", "every": every}
    found = of("fedlgd", {**keys, "times": 2, "server_steps": steps}, rounds=rounds)
    once = of("fedlgd", {**keys, "times": 1, "server_steps": 1}, rounds=1)
    # Rounds 1 and 3 of five.
    assert found.flops_server == pytest.approx(once.flops_server * steps * 2 / rounds)
    assert once.flops_server > 0
    assert of("fedavg").flops_server == 0

    plain = world("fedavg", rounds=3)
    [weight, *_] = [name for name in plain.network.names["params"] if name.endswith("weight")]

    def product(server: Tree) -> Tensor:
        return server["params"][weight] @ server["params"][weight].T

    works = (ServerWork(steps=lambda round_: round_, step=product),)
    working = replace(plain, method=replace(plain.method, server_work=works))
    # 1, 2 and 3 products of 5 x 6 and 6 x 5 numbers.
    assert costs.measure(working, plain.begin()).flops_server == 2 * 5 * 6 * 5 * (1 + 2 + 3) / 3


def changed(simulation: Simulation, part: Pass, **choices: Any) -> Simulation:
    return replace(simulation, method=replace(simulation.method, passes=(part,), **choices))


def test_rounds_in_which_a_pass_is_left_out_cost_what_they_cost() -> None:
    simulation = world("fedavg", "cnn", rounds=4)
    [part] = simulation.method.passes
    assert isinstance(part, Pass)
    one = stepping(part, lambda round_: 1)
    every = costs.measure(changed(simulation, one), simulation.begin())
    some = stepping(part, lambda round_: 5 if round_ % 2 else 0)
    found = costs.measure(changed(simulation, some), simulation.begin())
    assert found.traffic == [[1, MODEL, MODEL], [1, 0, 0]] * 2
    assert found.flops == every.flops * 5 * 2 / 4


def stepping(part: Pass, steps: Callable[[int], int]) -> Pass:
    return replace(part, sampling=Sampling(steps=steps))


def test_refreshes_count_as_often_as_they_come() -> None:
    plain = world("fedavg", local_epochs=None, local_steps=7)
    [part] = plain.method.passes
    assert isinstance(part, Pass)

    def look(server: Tree, work: Tree, batch: Tree) -> dict[str, Any]:
        return {"seen": batch["x"].T @ batch["x"]}

    often = Refresh(
        interval=3, first_step=1, batch_count=2, look=look, adapt=lambda work, seen: dict(work)
    )
    found = costs.measure(changed(plain, replace(part, refreshes=(often,))), plain.begin())
    without = costs.measure(plain, plain.begin())
    # After steps 1, 4 and 7, over two batches of eight samples of six numbers.
    assert found.flops - without.flops == 3 * 2 * (2 * 8) * 6 * 6


def test_a_sweep_after_training_counts_samples_and_its_end_once_a_client() -> None:
    simulation = world("fedsac", participation=1.0, momentum=0.0)
    inputs, hidden, classes, batch = 6, 5, worlds.CLASSES, 8
    forward = 2 * (inputs * hidden + hidden * classes)
    step = batch * (2 * forward + 2 * hidden * classes)
    steps = [2 * -(-size // batch) for size in worlds.SIZES]
    # A sample's forward pass, and its features' products with each other.
    look = forward + 2 * hidden**2
    # Directions of the features: three products of two matrices (`fl.blocks.subspaces`).
    end = 3 * 2 * hidden**3
    by_hand = sum(n * step + size * look + end for n, size in zip(steps, worlds.SIZES, strict=True))
    found = costs.measure(simulation, simulation.begin())
    assert found.flops == by_hand / len(steps)


def test_an_exchange_before_counts_samples_and_its_end_once_a_client() -> None:
    plain = world("fedavg", participation=1.0, rounds=3)

    def look(server: Tree, client: Tree, sent: Tree, batch: Tree) -> dict[str, Any]:
        return {"seen": batch["x"].T @ batch["x"]}

    def conclude(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Any, Any]:
        return dict(server), dict(clients)

    def end(server: Tree, client: Tree, sent: Tree, seen: Tree) -> tuple[Any, Any]:
        return dict(client), {"seen": seen["seen"] @ seen["seen"]}

    seeing = Sweep(look, end)
    before = Phase((seeing,), conclude, is_active=lambda round_: round_ == 3)
    method = replace(plain.method, earlier_phases=(before,))
    found = costs.measure(replace(plain, method=method), plain.begin())
    without = costs.measure(plain, plain.begin())
    mean = sum(worlds.SIZES) / len(worlds.SIZES)
    # A product of every sample with itself; at the end one of two matrices of 6 x 6 a client.
    assert found.flops - without.flops == pytest.approx((2 * 6 * 6 * mean + 2 * 6**3) / 3)
    model = without.traffic[0][1]
    assert found.traffic == [[2, model, model], [1, model, model + 6 * 6 * 8]]


def test_what_cannot_be_measured_says_why() -> None:
    simulation = world("fedavg")
    [part] = simulation.method.passes

    def broken(server: Tree, client: Tree) -> dict[str, Any]:
        raise ValueError("no such\nthing")

    assert isinstance(part, Pass)
    failing = changed(simulation, replace(part, begin=broken))
    assert costs.measure_or_explain(failing, simulation.begin()) == UnknownCosts(
        "ValueError: no such thing"
    )
