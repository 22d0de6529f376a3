from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import worlds
from torch import Tensor, nn
from worlds import world

from fl.api import trees
from fl.api.method import BuildContext, Method, Pass, Refresh
from fl.api.network import Network
from fl.api.protocols import is_consuming_gradients
from fl.api.training import Training
from fl.base.errors import FedloomError
from fl.engine import engine
from fl.engine.batches import Schedule, schedule
from fl.engine.sample_arrays import Arrays
from fl.engine.simulation import Simulation
from fl.engine.state import PhaseSchedule, RoundSchedule, State

IDENTITY = {"scale": 1.0, "mean": 0.0, "sd": 1.0}
STEPS = [3, 1, 5, 3]
"""Of clients 4, 0, 2 and 1; client 3 does not take part."""


def counter(stacks: list[int] | None = None) -> Method:
    """A weight that counts steps; the loss is the label. ``stacks`` gets each update's width."""

    def loss(server: Any, work: Any, batch: Any) -> tuple[Tensor, dict[str, Any]]:
        return batch["y"].double().mean() + 0.0 * work["params"]["w"], {}

    def update(server: Any, work: Any, grads: Any, aux: Any, lr: float) -> dict[str, Any]:
        if stacks is not None:
            stacks.append(work["params"]["w"].numel())
        return {"params": {"w": work["params"]["w"] + lr}}

    counting = Pass(
        begin=lambda server, client: {"params": {"w": server["w"] + client["kept"]}},
        loss=loss,
        update=update,
        end=lambda server, client, work: (
            {**client, "kept": work["params"]["w"]},
            {"w": work["params"]["w"]},
        ),
    )
    return Method(
        init=lambda variables: (
            {"w": torch.zeros((), dtype=torch.float64)},
            {"kept": torch.zeros((), dtype=torch.float64)},
        ),
        passes=(counting,),
        aggregate=lambda server, clients, uploads, n: (trees.mean(uploads, n), dict(clients)),
        views={},
    )


def counted() -> tuple[State, RoundSchedule]:
    """Client k's labels are 10 k + step, its kept number k / 8; a step counts 1."""
    clients = torch.tensor([4, 0, 2, 1])
    index = np.zeros((4, 5, 2), np.int64)
    for row, client in enumerate(clients.tolist()):
        index[row] = (10 * client + np.arange(5))[:, None]
    y = np.arange(50)
    plan = RoundSchedule(
        round=1,
        phases=(
            PhaseSchedule(
                clients,
                torch.tensor([1.0, 1.0, 4.0, 2.0], dtype=torch.float64),
                (Schedule(index, np.ones(index.shape, bool), np.array(STEPS)),),
            ),
        ),
        arrays=Arrays(np.zeros((50, 1)), y, IDENTITY, dtype=torch.float64),
        training=Training(lr=1.0),
    )
    kept = torch.arange(5, dtype=torch.float64) / 8
    server = {"w": torch.zeros((), dtype=torch.float64)}
    return State(server, {"kept": kept, "id": torch.arange(5)}), plan


@pytest.mark.parametrize("backend", ["loop", "stacked", "debug"])
def test_every_client_takes_its_own_steps(backend: str) -> None:
    state, plan = counted()
    after, losses = engine.run_round(counter(), state, plan, backend)
    assert after.clients["kept"].tolist() == [1.0, 3.125, 5.25, 0.375, 3.5]
    assert after.clients["id"].tolist() == [0, 1, 2, 3, 4]
    assert float(after.server["w"]) == (3.5 * 1 + 1.0 * 1 + 5.25 * 4 + 3.125 * 2) / 8
    assert losses.tolist() == [41.0, 0.0, 22.0, 11.0]
    assert losses.dtype == torch.float64


def test_the_stack_shrinks_as_clients_finish() -> None:
    state, plan = counted()
    stacks: list[int] = []
    engine.run_round(counter(stacks), state, plan, "stacked")
    assert stacks == [4, 3, 3, 1, 1]


@pytest.mark.parametrize("backend", ["loop", "stacked"])
def test_an_update_that_reads_gradients_after_one_that_spends_them_finds_them(backend: str) -> None:
    simulation = world("fedavg", "mlp")
    spending = simulation.method.passes[0]
    intact = []

    def update(server: Any, work: Any, grads: Any, aux: Any, lr: float) -> dict[str, Any]:
        before = trees.apply(Tensor.clone, grads)
        after = spending.update(server, work, grads, aux, lr)
        pairs = zip(trees.leaves(grads), trees.leaves(before), strict=True)
        intact.append(all(torch.equal(a, b) for a, b in pairs))
        return after

    reading = replace(simulation.method, passes=(replace(spending, update=update),))
    found, _ = worlds.run(replace(simulation, method=reading), backend)
    expected, _ = worlds.run(simulation, backend)
    assert (
        intact
        and all(intact)
        and is_consuming_gradients(spending.update)
        and not is_consuming_gradients(update)
    )
    # An update in place may round otherwise.
    assert worlds.distance(worlds.tree(found), worlds.tree(expected)) < 1e-15


def test_in_float32_they_agree_to_its_rounding() -> None:
    simulation = world("fedavg", "cnn", precision="float32")
    loop, stacked = (worlds.run(simulation, backend)[0] for backend in ("loop", "stacked"))
    leaves = trees.leaves({k: v for k, v in loop.server.items() if k == "params"})
    assert {leaf.dtype for leaf in leaves} == {torch.float32}
    assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-4


@pytest.mark.parametrize("method", ["ditto", "perfedavg"])
def test_mixed_precision_is_near_and_keeps_weights_in_float32(method: str) -> None:
    options: Any = {"method": method, "model": "cnn", "rounds": 1, "lr": 0.01}
    exact, _ = worlds.run(world(**options, precision="float32"))
    for backend in ("loop", "stacked"):
        found, rows = worlds.run(world(**options, precision="mixed"), backend)
        floating = [leaf for leaf in trees.leaves(worlds.tree(found)) if leaf.is_floating_point()]
        assert torch.bfloat16 not in {leaf.dtype for leaf in floating}
        weights = [end.server["params"] for end in (found, exact)]
        assert 1e-5 < worlds.distance(*weights) < 0.05
        assert np.isfinite(rows["value"]).all()


def test_channels_last_differs_by_rounding_only() -> None:
    formats = ("contiguous", "channels-last")
    for backend in ("loop", "stacked"):
        ends = [
            worlds.run(world("fedavg", "cnn", memory_format=name), backend)[0] for name in formats
        ]
        assert worlds.distance(*map(worlds.tree, ends)) < 1e-10


def test_running_statistics_see_the_fills_that_the_loss_does_not() -> None:
    """Batch statistics are over whole batches, so what fills them does matter there."""
    simulation = world("fedavg", "cnn", participation=1.0, rounds=1)
    plan = simulation.round_schedule(1)
    weight = plan.schedules[0].weight
    first = plan.schedules[0]
    filled = replace(first, index=np.where(weight, first.index, 33))
    ends = [
        engine.run_round(simulation.method, simulation.begin(), p, "loop")[0].server["buffers"]
        for p in (plan, plan.with_schedules([filled]))
    ]
    assert not torch.equal(ends[0]["1.running_mean"], ends[1]["1.running_mean"])
    assert int(ends[0]["1.num_batches_tracked"]) == 6


# Errors


def spoilt(x: float | None = None, y: int | None = None) -> tuple[Simulation, str]:
    """A world in which one sample is bad, and where that shows first: client, round, step."""
    simulation = world("fedavg", participation=1.0)
    plan = simulation.round_schedule(1)
    sample = int(plan.schedules[0].index[2, 2, 1])
    raw, labels, _ = worlds.data("mlp")
    if x is not None:
        raw[sample] = x
    if y is not None:
        labels[sample] = y
    arrays = Arrays(raw, labels, worlds.NORMALISATION, dtype=torch.float64)
    return replace(simulation, arrays=arrays), "client 2, round 1, step 2"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_debug_stops_where_the_loss_is_no_longer_finite(value: float) -> None:
    simulation, place = spoilt(x=value)
    with pytest.raises(FedloomError, match=rf"^{place}: the loss is (nan|inf)$"):
        engine.run_round(
            simulation.method, simulation.begin(), simulation.round_schedule(1), "debug"
        )


@pytest.mark.parametrize("backend", ["loop", "stacked"])
def test_the_others_carry_on_and_say_whose_loss_it_was(backend: str) -> None:
    simulation, _ = spoilt(x=float("nan"))
    _, losses = engine.run_round(
        simulation.method, simulation.begin(), simulation.round_schedule(1), backend
    )
    assert torch.isfinite(losses).tolist() == [True, True, False, True]


def test_debug_names_the_place_of_any_error() -> None:
    simulation, place = spoilt(y=7)
    with pytest.raises(FedloomError) as caught:
        engine.run_round(
            simulation.method, simulation.begin(), simulation.round_schedule(1), "debug"
        )
    assert str(caught.value).startswith(f"{place}: RuntimeError: index 7 is out of bounds")


# Refreshes


def adapting(refresh: dict[str, int], seen: list[Any] | None = None) -> Method:
    """`counter` with a second number in its work, to which a refresh adds the labels it looks at.

    ``seen`` gets (client, label) of everything that is looked at, and the step it comes after.
    """
    base = counter()
    [counting] = base.passes

    def look(server: Any, work: Any, batch: Any) -> dict[str, Any]:
        if seen is not None:
            seen.append((float(work["id"]), batch["y"].tolist(), float(work["params"]["w"])))
        return {"sum": batch["y"].double().sum()}

    def begin(server: Any, client: Any) -> dict[str, Any]:
        zero = torch.zeros((), dtype=torch.float64)
        return {**counting.begin(server, client), "sum": zero, "id": client["id"]}

    step = replace(
        counting,
        begin=begin,
        update=lambda server, work, grads, aux, lr: {
            **work,
            **counting.update(server, work, grads, aux, lr),
        },
        end=lambda server, client, work: ({**client, "kept": work["sum"]}, {"w": work["sum"]}),
        refreshes=(
            Refresh(
                **refresh,
                look=look,
                adapt=lambda work, found: {**work, "sum": work["sum"] + found["sum"]},
            ),
        ),
    )
    return replace(base, passes=(step,))


@pytest.mark.parametrize("backend", ["loop", "stacked", "compiled"])
def test_a_refresh_comes_when_it_is_due_on_samples_of_its_own(backend: str) -> None:
    state, plan = counted()
    # Each client's refreshes after steps 2 and 4 look at 100 client + 10 time + 0, 1, 2.
    extra = np.zeros((4, 2, 3), np.int64)
    for row, client in enumerate(plan.clients.tolist()):
        extra[row] = 100 * client + 10 * np.arange(2)[:, None] + np.arange(3)
    arrays = Arrays(np.zeros((500, 1)), np.arange(500), IDENTITY, dtype=torch.float64)
    [batches] = plan.schedules
    plan = replace(plan, arrays=arrays).with_schedules([replace(batches, refresh_index=(extra,))])
    seen: list[Any] = []
    method = adapting({"first_step": 2, "interval": 2, "batch_count": 1}, seen)
    state = replace(state, clients={**state.clients, "kept": torch.zeros(5, dtype=torch.float64)})
    after, _ = engine.run_round(method, state, plan, backend)
    # Clients 4, 0, 2, 1 take 3, 1, 5, 3 steps: 1, 0, 2 and 1 refreshes.
    assert after.clients["kept"].tolist() == [0.0, 303.0, 603.0 + 633.0, 0.0, 1203.0]
    assert sorted(seen) == [
        (1.0, [100, 101, 102], 2.0),
        (2.0, [200, 201, 202], 2.0),
        (2.0, [210, 211, 212], 4.0),
        (4.0, [400, 401, 402], 2.0),
    ]


def test_a_refresh_draws_a_clients_own_training_samples_anew_each_time() -> None:
    held = [np.arange(10), np.arange(100, 107)]
    refresh = Refresh(20, 2, 3, look=lambda *_: {}, adapt=lambda work, _: dict(work))
    training = Training(batch_size=4, local_steps=45)
    found = schedule(held, [0, 1], training, 5, 1, refreshes=(refresh,))
    plain = schedule(held, [0, 1], training, 5, 1)
    assert np.array_equal(found.index, plain.index), "batches are as they were"
    [extra] = found.refresh_index
    assert extra.shape == (2, 3, 12)  # After steps 2, 22 and 42.
    for row, own in enumerate(held):
        for time in range(3):
            counts = np.bincount(extra[row, time], minlength=own[-1] + 1)[own]
            assert counts.sum() == 12
            assert counts.min() >= 12 // len(own)
            assert counts.max() <= -(-12 // len(own))
    assert not np.array_equal(extra[0, 0], extra[0, 1])
    later = schedule(held, [0, 1], training, 5, 2, refreshes=(refresh,))
    assert not np.array_equal(extra, later.refresh_index[0])
    short = schedule(held, [0, 1], replace(training, local_steps=1), 5, 1, refreshes=(refresh,))
    assert short.refresh_index[0].shape == (2, 0, 12)
    begun = found.begin(30, (refresh,))
    assert begun.steps.tolist() == [30, 30]
    assert np.array_equal(begun.refresh_index[0], extra[:, :2])


# Random layers


def dropping(**training: Any) -> Simulation:
    """FedAvg with a model that drops elements, channels and whole samples."""
    torchvision = pytest.importorskip("fl.pytorch.vision").torchvision

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.Dropout2d(0.3),
            torchvision.ops.StochasticDepth(0.2, "row"),
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(64, worlds.CLASSES),
        )

    like = world("fedavg", "cnn", **training)
    network = Network(make, torch.float64)
    context = BuildContext(network, like.training, worlds.CLASSES, 4)
    method = worlds.entry("fedavg").instantiate({}).build(context)
    return replace(like, network=network, method=method)


def test_random_layers_are_the_same_in_every_backend() -> None:
    simulation = dropping()
    assert simulation.network.random
    loop, rows = worlds.run(simulation, "loop")
    stacked, stacked_rows = worlds.run(simulation, "stacked")
    assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-10
    assert worlds.rows_agree(stacked_rows, rows, 1e-10)
    other, _ = worlds.run(replace(simulation, seed=6), "loop")
    assert worlds.distance(worlds.tree(other), worlds.tree(loop)) > 1e-3


def test_random_layers_drop_their_share_and_nothing_in_evaluation() -> None:
    network = dropping().network
    variables = network.init(0)
    probe = Network(lambda: nn.Sequential(nn.Dropout(0.25), nn.Identity()), torch.float64)
    x = torch.ones(50, 40, dtype=torch.float64)
    key = torch.arange(50)
    dropped = probe.train({}, {}, x, key=key).outputs
    assert set(dropped.unique().tolist()) == {0.0, 1 / 0.75}
    # The standard deviation of the share of 2,000 elements is 0.01.
    assert abs(float((dropped == 0).double().mean()) - 0.25) < 0.04
    assert torch.equal(probe.train({}, {}, x, key=key).outputs, dropped)
    assert torch.equal(probe.train({}, {}, x[7:9], key=key[7:9]).outputs, dropped[7:9])
    assert torch.equal(probe.eval({}, {}, x).outputs, x)
    images = torch.randn(6, 1, 4, 4, dtype=torch.float64)
    params, buffers = variables["params"], variables["buffers"]
    with pytest.raises(FedloomError, match=r'pass key=batch.get\("key"\) to Network.train'):
        network.train(params, buffers, images)
