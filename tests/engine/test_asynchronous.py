"""Asynchronous servers: a timeline by hand, equality with synchronous rounds, resumption."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from arriving import arriving, table_of

from fl.api import trees
from fl.api.participation import Presence
from fl.base.errors import FedloomError
from fl.base.schema import CLOCK
from fl.engine import simulate
from fl.engine.asynchronous import Timeline
from fl.engine.simulation import Simulation
from fl.participation.servers.fedbuff import FedBuff

AT_ONCE = (1e300,) * 4
"""Speeds at which nobody is slower than others, whatever a client has to do."""


ALL = np.arange(60)


def trained(run: Simulation, rounds: int, backend: str = "stacked") -> tuple[Any, pd.DataFrame]:
    state, rows = run.begin(), []
    for number, done in enumerate(simulate.rounds(run, state, 0, backend), start=1):
        rows.append(done.rows)
        state = done.state
        if number == rounds:
            break
    return state, pd.concat(rows, ignore_index=True)


def test_a_timeline_is_the_one_by_hand() -> None:
    """Three clients that take 1, 2 and 5 seconds; two uploads are an update.

    At 0 all begin from version 0. At 1 client 0 arrives and waits; at 2 client 1 arrives: version
    1. Both begin anew from it. At 3 client 0 arrives, at 4 client 1: version 2; both begin anew.
    At 5 clients 0 and 2 arrive, in the order of clients: version 3, of client 2's version 0.
    """
    seconds = np.array([1.0, 2.0, 5.0])
    timeline = Timeline(table_of([1, 1, 1]), np.arange(3), lambda round_: seconds, 2, 3, seed=0)
    updates = timeline.updates()
    first, second, third = next(updates), next(updates), next(updates)
    assert [first.seconds, second.seconds, third.seconds] == [2, 4, 5]
    assert [u.clients.tolist() for u in (first, second, third)] == [[0, 1], [0, 1], [0, 2]]
    assert [u.versions.tolist() for u in (first, second, third)] == [[0, 0], [1, 1], [2, 0]]
    assert [u.under_way for u in (first, second, third)] == [[0, 1], [0, 2], [2, 3]]
    assert [u.sent for u in (first, second, third)] == [3, 2, 2]


@pytest.mark.parametrize("size", [1, 4])
def test_clients_that_come_and_go_keep_no_update_waiting(size: int) -> None:
    """Each is there for a third of a minute, and its work may take longer than that."""
    begin = np.sort(np.random.default_rng(3).uniform(0, 42, 20))
    presence = Presence(np.arange(20), begin, begin + 18, 60.0)
    devices = replace(table_of(np.ones(20)), failure=np.full(20, 0.2), presence=presence)
    seconds = np.random.default_rng(4).uniform(2, 30, 20)
    timeline = Timeline(devices, np.arange(20), lambda round_: seconds, size, 10, seed=0)
    updates = [update for update, _ in zip(timeline.updates(), range(200), strict=False)]
    assert len(updates) == 200
    assert (np.diff([update.seconds for update in updates]) >= 0).all()
    assert max(update.dropped for update in updates) < 20 * size


def test_devices_on_which_nobody_ends_are_told() -> None:
    devices = replace(table_of(np.ones(3)), failure=np.ones(3))
    timeline = Timeline(devices, np.arange(3), lambda round_: np.ones(3), 1, 2, seed=0)
    with pytest.raises(FedloomError, match=r"(?s)before 1 upload arrived.*less failure"):
        next(timeline.updates())


def test_a_client_takes_as_long_before_training_as_after_it() -> None:
    """What a network finds out in its first step of all counts for nobody."""
    run = arriving("ditto", FedBuff(size=2, concurrency=3), rounds=2)
    before = run.participation.clock.operations(1)
    trained(run, 2)
    again = replace(run.participation.clock, _measured={}).operations(1)
    np.testing.assert_array_equal(before, again)


@pytest.mark.parametrize("presence", [None, Presence(ALL, 3.0 * (ALL % 2), 4.0 + 0 * ALL, 4.0)])
def test_nobody_is_sent_a_model_twice_at_a_time_and_nobody_who_is_away(
    presence: Presence | None,
) -> None:
    """Half of 60 clients are there for a quarter of the time, if presence is asked for."""
    devices = replace(table_of(np.ones(60)), failure=np.full(60, 0.1), presence=presence)
    seconds = np.random.default_rng(1).uniform(0.3, 0.9, 60)
    timeline = Timeline(devices, np.arange(3, 60), lambda round_: seconds, 4, 12, seed=0)
    updates = [update for update, _ in zip(timeline.updates(), range(300), strict=False)]
    free_from, taking_part, dropped = np.zeros(60), np.zeros(60, int), 0
    for update in updates:
        assert (update.begin >= free_from[update.clients]).all()
        np.testing.assert_allclose(update.arrival, update.begin + seconds[update.clients])
        free_from[update.clients] = update.seconds
        taking_part[update.clients] += 1
        dropped += update.dropped
        if presence is not None:
            for client, begin in zip(update.clients, update.begin, strict=True):
                assert presence.has(int(client), begin)
    works = [(begin, end) for u in updates for begin, end in zip(u.begin, u.arrival, strict=True)]
    assert all(sum(b <= now < e for b, e in works) <= 12 for now, _ in works[::20])
    assert not taking_part[:3].any() and dropped > 50
    if presence is None:
        assert taking_part.max() < 3 * taking_part[3:].min()
    else:
        assert 0 < taking_part[1::2].sum() < taking_part[::2].sum() / 4


@pytest.mark.parametrize("share", [1.0, 0.75])
@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedper", "fedavgm"])
def test_with_equal_devices_it_is_synchronous_to_the_bit(method: str, share: float) -> None:
    count = round(4 * share)
    waiting = arriving(method, None, rounds=3, participation=share, speeds=AT_ONCE)
    server = FedBuff(size=count, concurrency=count)
    without_waiting = arriving(method, server, rounds=3, participation=share, speeds=AT_ONCE)
    (one, one_rows), (other, other_rows) = trained(waiting, 3), trained(without_waiting, 3)
    for mine, theirs in zip(trees.leaves(one.server), trees.leaves(other.server), strict=True):
        assert torch.equal(mine, theirs)
    waiting_rows = one_rows[one_rows["metric"] != "idle"].reset_index(drop=True)
    pd.testing.assert_frame_equal(waiting_rows, other_rows)
    assert set(one_rows["split"]) >= {CLOCK, "train", "test"}


def test_a_late_upload_is_added_to_the_newest_version() -> None:
    """One upload an update: the second client's change counts (1 + 1)^-.5 of itself."""
    run = arriving("fedavg", FedBuff(size=1, concurrency=2), rounds=2, speeds=AT_ONCE)
    second = run.participation.update(2)
    assert second.versions.tolist() == [0]
    start = run.begin()
    [one, two] = [done.state for done in simulate.rounds(run, start, 0, "loop")]
    alone = run.scheduler.round_schedule(2, second.clients, ())
    from fl.engine import engine

    local, _ = engine.run_round(run.method, start, alone, "loop")
    for name, weight in two.server["params"].items():
        change = local.server["params"][name] - start.server["params"][name]
        expected = one.server["params"][name] + 2**-0.5 * change
        torch.testing.assert_close(weight, expected)


def test_it_goes_on_from_a_state_with_all_that_is_under_way() -> None:
    run = arriving("ditto", FedBuff(size=2, concurrency=3), rounds=5, speeds=AT_ONCE)
    whole, rows = trained(run, 5)
    half, _ = trained(run, 2)
    rest = list(simulate.rounds(run, half, 2, "stacked"))
    for mine, theirs in zip(
        trees.leaves(whole.server), trees.leaves(rest[-1].state.server), strict=True
    ):
        assert torch.equal(mine, theirs)
    pd.testing.assert_frame_equal(
        rows[rows["round"] > 2].reset_index(drop=True),
        pd.concat([done.rows for done in rest], ignore_index=True),
    )


def test_a_method_whose_clients_send_more_than_weights_is_refused() -> None:
    with pytest.raises(FedloomError, match="asynchronous"):
        arriving("scaffold", FedBuff(size=2, concurrency=2))
