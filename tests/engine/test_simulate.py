from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import worlds
from worlds import world

from fl.api import trees
from fl.base.errors import FedloomError
from fl.engine import simulate
from fl.engine.client_data import ClientData
from fl.engine.sample_arrays import Arrays
from fl.engine.simulation import Simulation

NOTHING = np.zeros(0, np.int64)


@pytest.mark.parametrize(("share", "count"), [(1.0, 4), (0.75, 3), (0.01, 1)])
def test_a_share_of_the_clients_takes_part(share: float, count: int) -> None:
    simulation = world("fedavg", participation=share)
    for round in (1, 2):
        plan = simulation.round_schedule(round)
        clients = plan.clients.tolist()
        assert len(clients) == count
        assert clients == sorted(set(clients))
        assert plan.n.tolist() == [worlds.SIZES[k] for k in clients]


def test_who_takes_part_is_drawn_anew_each_round_and_evenly() -> None:
    simulation = world("fedavg", participation=0.5)
    drawn = [tuple(simulation.round_schedule(r).clients.tolist()) for r in range(1, 201)]
    assert drawn == [tuple(simulation.round_schedule(r).clients.tolist()) for r in range(1, 201)]
    assert len(set(drawn)) == 6
    counts = Counter(client for clients in drawn for client in clients)
    assert all(70 < counts[client] < 130 for client in range(4))
    other = replace(simulation, seed=6)
    assert drawn != [tuple(other.round_schedule(r).clients.tolist()) for r in range(1, 201)]


def test_clients_that_are_away_never_take_part() -> None:
    simulation = world("fedavg", participation=0.5)
    everybody = [simulation.round_schedule(r).clients.tolist() for r in range(1, 41)]
    simulation = replace(
        simulation, client_data=replace(simulation.client_data, absent_clients=(1,))
    )
    drawn = [simulation.round_schedule(r).clients.tolist() for r in range(1, 41)]
    assert {client for clients in drawn for client in clients} == {0, 2, 3}
    assert {len(clients) for clients in drawn} == {2}
    whole = replace(simulation, client_data=replace(simulation.client_data, absent_clients=()))
    assert [whole.round_schedule(r).clients.tolist() for r in range(1, 41)] == everybody


def test_batches_are_of_training_samples_only() -> None:
    simulation = world("fedavg", participation=1.0)
    seen = {
        int(i)
        for r in (1, 2)
        for i in simulation.round_schedule(r).schedules[0].index[:, 0].ravel()
    }
    held = simulation.client_data.samples
    assert seen <= set(np.concatenate(held["train"]).tolist())
    for split in ("val", "test"):
        assert not seen & set(np.concatenate(held[split]).tolist())


def test_scores_come_when_due_and_after_the_last_round() -> None:
    simulation = world("fedavg", rounds=5, evaluate_every=2)
    _, rows = worlds.run(simulation)
    scored = rows[rows["metric"] == "accuracy"]
    assert sorted(set(scored["round"])) == [2, 4, 5]
    training = rows[rows["split"] == "train"]
    assert set(training["metric"]) == {"loss"}
    assert training.groupby("round").size().tolist() == [3] * 5
    assert set(scored["client"]) == {0, 1, 2, 3}


EIGHT = (5, 5, 5, 5, 5, 5, 5, 5)


def scored_clients(simulation: Simulation) -> dict[str, set[int]]:
    """By split the clients with rows, the same in every round."""
    rows = simulation.evaluate(simulation.begin(), 1)
    for number in (2, 9):
        again = simulation.evaluate(simulation.begin(), number)
        pd.testing.assert_frame_equal(rows.drop(columns="round"), again.drop(columns="round"))
    return {str(split): set(its["client"]) for split, its in rows.groupby("split")}


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_a_sample_of_the_clients_is_evaluated_as_all_of_them_would_be(method: str) -> None:
    whole = world(method, sizes=EIGHT)
    few = world(method, sizes=EIGHT, evaluate_clients=3)
    drawn = scored_clients(few)["test"]
    assert len(drawn) == 3
    state = whole.begin()
    rows = whole.evaluate(state, 1)
    expected = rows[rows["client"].isin(drawn)].reset_index(drop=True)
    assert worlds.rows_agree(few.evaluate(state, 1), expected, 1e-12)
    assert set(rows["client"]) == set(range(8))


def test_the_sample_is_drawn_by_the_seed_alone() -> None:
    drawn = [
        frozenset(scored_clients(world(m, sizes=EIGHT, seed=s, evaluate_clients=3))["test"])
        for m, s in [("fedavg", 5), ("scaffold", 5), *(("fedavg", seed) for seed in range(6, 16))]
    ]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 6
    assert scored_clients(world("fedavg", evaluate_clients=99))["test"] == {0, 1, 2, 3}


def test_of_clients_that_are_held_out_as_many_are_drawn_besides() -> None:
    run = world("fedavg", sizes=EIGHT, evaluate_clients=2)
    test = run.client_data.samples["test"]
    out = (5, 6, 7)
    samples = {
        **run.client_data.samples,
        "test": [NOTHING if k in out else numbers for k, numbers in enumerate(test)],
        "unseen": [numbers if k in out else NOTHING for k, numbers in enumerate(test)],
    }
    drawn = scored_clients(replace(run, client_data=ClientData(samples, absent_clients=out)))
    assert [len(drawn[split]) for split in ("test", "unseen")] == [2, 2]
    assert drawn["unseen"] < set(out) and not drawn["test"] & set(out)


def test_a_stored_model_is_scored_on_the_same_sample() -> None:
    run = world("finetune", sizes=EIGHT, evaluate_clients=3)
    weights = world("fedavg").begin().server
    before = run.evaluate_start(weights)
    assert set(before["client"]) == set(run.evaluate(run.begin(weights), 1)["client"])
    assert len(set(before["client"])) == 3


def test_the_state_before_round_1_depends_on_the_seed_alone() -> None:
    one, two = world("fedavg", rounds=1).begin(), world("fedprox", rounds=9, lr=1.0).begin()
    assert worlds.same(one.server, two.server)
    assert worlds.distance(one.server, world("fedavg", seed=6).begin().server) > 1e-3
    assert one.clients["id"].tolist() == [0, 1, 2, 3]


def test_stored_weights_take_the_place_of_fresh_ones() -> None:
    weights = trees.apply(lambda t: torch.full_like(t, 0.5), world("fedavg").begin().server)
    state = world("finetune").begin(weights)
    for client in range(4):
        own = trees.take(state.clients, client)
        assert worlds.same({k: own[k] for k in ("params", "buffers")}, weights)


@pytest.mark.parametrize("backend", ["loop", "stacked"])
def test_a_loss_that_is_not_finite_ends_the_run(backend: str) -> None:
    raw, labels, held = worlds.data("mlp")
    raw[held.samples["train"][2]] = np.nan
    simulation = world("fedavg", participation=0.25, rounds=12)
    arrays = Arrays(raw, labels, worlds.NORMALISATION, dtype=torch.float64)
    simulation = replace(simulation, arrays=arrays)
    first = next(r for r in range(1, 13) if 2 in simulation.round_schedule(r).clients.tolist())
    assert 1 < first < 12
    done = list(simulate.rounds(simulation, simulation.begin(), 0, backend))
    assert [d.has_diverged for d in done] == [False] * (first - 1) + [True]
    assert np.isnan(done[-1].loss)
    assert (
        done[-1].divergence
        == f"the training loss of client 2 was no longer finite in round {first}"
    )
    assert set(done[-1].rows["metric"]) == {"loss"}


def test_a_model_that_is_ruined_by_the_last_step_has_diverged() -> None:
    """Its training loss was still finite, its scores are not."""
    simulation = world("fedavg", rounds=1, lr=3e38, local_epochs=None, local_steps=1)
    [done] = simulate.rounds(simulation, simulation.begin(), 0, "loop")
    scores = done.rows.loc[done.rows["split"] != "train", "value"]
    assert done.has_diverged or np.isfinite(scores).all()


def test_a_seed_that_diverges_leaves_the_others_as_they_are() -> None:
    runs = {seed: world("fedavg", "cnn", seed=seed, rounds=4) for seed in (1, 2, 3)}
    states = {seed: run.begin() for seed, run in runs.items()}
    ruined = trees.apply(lambda t: t * torch.nan if t.is_floating_point() else t, states[2].server)
    states[2] = replace(states[2], server=ruined)
    done = list(simulate.lockstep(runs, states, 0, "stacked"))
    assert [sorted(one) for one in done] == [[1, 2, 3], [1, 3], [1, 3], [1, 3]]
    assert done[0][2].has_diverged
    assert done[0][2].divergence.startswith("the training loss of clients ")
    assert done[0][2].divergence.endswith(" was no longer finite in round 1")
    for seed in (1, 3):
        alone, _ = worlds.run(runs[seed], "loop")
        assert worlds.distance(worlds.tree(done[-1][seed].state), worlds.tree(alone)) < 1e-10


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda server: None, "`aggregate` of the method returns None"),
        (lambda server: ({**server, "rate": 0.5}, {}), "type float as server/rate"),
        (lambda server: ({"params": server["params"]}, {}), "server/buffers as nothing; it was a"),
        (lambda server: (_with_bias(server, lambda b: b[:1]), {}), "float64 [1]; it was float64 ["),
        (lambda server: (_with_bias(server, lambda b: b.half()), {}), "as float16 ["),
        (
            lambda server: ({**server, "params": {**server["params"], "new": torch.ones(2)}}, {}),
            "server/params/new as float32 [2]; it was nothing",
        ),
    ],
)
def test_a_server_that_is_another_after_a_round_is_refused(
    change: Callable[[Any], Any], said: str
) -> None:
    simulation = world("fedavg", rounds=1)
    method = simulation.method

    def aggregate(server: Any, clients: Any, uploads: Any, n: torch.Tensor) -> Any:
        _, clients = method.aggregate(server, clients, uploads, n)
        result = change(server)
        return (result[0], clients) if isinstance(result, tuple) else result

    simulation = replace(simulation, method=replace(method, aggregate=aggregate))
    with pytest.raises(FedloomError) as caught:
        list(simulate.rounds(simulation, simulation.begin(), 0, "loop"))
    assert said in str(caught.value)


def _with_bias(server: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    name = next(name for name in server["params"] if name.endswith("bias"))
    return {**server, "params": {**server["params"], name: change(server["params"][name])}}


def test_a_repetition_begins_with_other_last_bits_and_no_others() -> None:
    plain = dict(world("fedavg").begin().server["params"])
    began = [dict(world("fedavg", rounding=k).begin().server["params"]) for k in (1, 1, 2)]
    for name, weight in plain.items():
        first, again, other = (weights[name] for weights in began)
        nearest = [torch.nextafter(weight, torch.full_like(weight, end)) for end in (-9.0, 9.0)]
        is_zero = weight == 0
        assert torch.equal(first, again) and torch.equal(first[is_zero], weight[is_zero])
        moved = torch.stack([first == value for value in nearest])
        assert moved.any(0)[~is_zero].all()
        if weight.numel() > 20 and not is_zero.all():
            assert moved.flatten(1).any(1).all(), "some go up and some down"
            assert not torch.equal(first, other)
