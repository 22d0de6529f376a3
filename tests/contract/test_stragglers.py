"""Clients that do part of a round's work, with every method and on both backends."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import worlds
from worlds import world

from fl.api.training import Training
from fl.base.errors import ConfigError, Location
from fl.base.fields import parse
from fl.engine.batches import draw_stragglers, draw_work_shares

HALF = {"stragglers": 0.5, "participation": 1.0, "local_epochs": 4}


@pytest.mark.parametrize("method", ["fedfm", "fednova", "scaffold"])
def test_stacked_is_loop_where_clients_work_unequally_long(method: str) -> None:
    simulation = world(method, rounds=1, **HALF)
    loop, rows = worlds.run(simulation, "loop")
    stacked, stacked_rows = worlds.run(simulation, "stacked")
    assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-10
    assert worlds.rows_agree(stacked_rows, rows, 1e-10)


def late_in(round_: int, clients: list[int], **training: Any) -> tuple[set[int], list[Fraction]]:
    settings = Training(**{"local_epochs": 4, **training})
    late = draw_stragglers(clients, settings, 5, round_)
    return late, draw_work_shares(clients, late, settings, 5, round_)


def test_a_straggler_does_the_beginning_of_its_work() -> None:
    everybody = world("fedavg", **{**HALF, "stragglers": 0.0}).round_schedule(1)
    plan = world("fedavg", **HALF).round_schedule(1)
    late, done = late_in(1, [0, 1, 2, 3], stragglers=0.5)
    assert len(late) == 2
    [whole], [cut] = everybody.schedules, plan.schedules
    assert whole is not None and cut is not None
    assert cut.steps.tolist() == [int(n * s) for n, s in zip(whole.steps, done, strict=True)]
    for row, steps in enumerate(cut.steps):
        assert np.array_equal(cut.index[row, :steps], whole.index[row, :steps])


def test_dropped_stragglers_take_no_part() -> None:
    late, _ = late_in(2, [0, 1, 2, 3], stragglers=0.5)
    plan = world("fedavg", **HALF, partial_work="dropped").round_schedule(2)
    assert plan.clients.tolist() == [k for k in range(4) if k not in late]
    assert len(plan.n) == len(plan.schedules[0].steps) == 2
    _, rows = worlds.run(world("fedavg", **HALF, partial_work="dropped"))
    trained = rows[rows["split"] == "train"].groupby("round").size()
    assert trained.tolist() == [2, 2]


def test_who_straggles_is_drawn_by_seed_client_and_round() -> None:
    clients = list(range(200))
    rounds = [late_in(t, clients, stragglers=0.9)[0] for t in (1, 2)]
    assert [len(late) for late in rounds] == [180, 180]
    assert rounds[0] != rounds[1]
    assert rounds[0] == late_in(1, clients[::-1], stragglers=0.9)[0]
    _, done = late_in(1, clients, stragglers=1.0)
    assert {share * 4 for share in done} == {1, 2, 3, 4}
    _, turned = late_in(1, clients[::-1], stragglers=1.0)
    assert turned == done[::-1]


def test_somebody_always_gets_done_where_the_rest_is_dropped() -> None:
    late, _ = late_in(1, [3, 4], stragglers=0.9, partial_work="dropped")
    assert len(late) == 1
    assert late_in(1, [3], stragglers=0.9, partial_work="dropped")[0] == set()


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (
            {"stragglers": 1.0, "partial_work": "dropped"},
            "so that no client trains. Try: set a share below 1, or partial_work: kept",
        ),
        (
            {"stragglers": 0.5},
            "local_epochs is 1, so that a straggler cannot do a part of it. Try: set partial_wo",
        ),
        (
            {"stragglers": 0.5, "local_steps": 1},
            "local_steps is 1, so that a straggler cannot do a part of it",
        ),
    ],
)
def test_what_leaves_nobody_or_nothing_to_do_is_refused(
    values: dict[str, Any], problem: str
) -> None:
    location = Location("studies/a.yaml", "training")
    with pytest.raises(ConfigError) as caught:
        Training.settle(parse(Training, values, location), location)
    assert str(caught.value).startswith("studies/a.yaml: training.stragglers: is ")
    assert problem in str(caught.value)
