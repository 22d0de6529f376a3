"""Clients of which only those who took part have rows are what a full stack would be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import modal_worlds
import numpy as np
import pytest
import torch
import worlds

from fl.api import trees
from fl.base.errors import FedloomError
from fl.engine import client_states, simulate
from fl.engine.client_states import ClientStates
from fl.store import checkpoint

COUNT = 6
INITIAL = {
    "params": {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(2)},
    "steps": torch.tensor(3),
    "empty": {},
}
FACTS = {"id": torch.arange(COUNT), "counts": torch.arange(2 * COUNT).reshape(COUNT, 2)}


def stack() -> dict[str, Any]:
    return {**trees.repeat(INITIAL, COUNT), **FACTS}


def values(clients: list[int], start: float) -> dict[str, Any]:
    """New trees of some clients; one leaf is not laid out row after row."""
    m = len(clients)
    weight = start + torch.arange(6.0 * m).reshape(3, 2, m).permute(2, 1, 0)
    params = {"weight": weight, "bias": torch.full((m, 2), start, dtype=torch.float64)}
    facts = {key: fact[clients] for key, fact in FACTS.items()}
    return {"params": params, "steps": torch.arange(m), "empty": {}, **facts}


@pytest.fixture(params=["memory", "file", "memory, then file"])
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The bytes of rows that stay in memory: all, none, or those of three clients."""
    size = trees.nbytes(INITIAL)
    limit = {"memory": 2**28, "file": 0, "memory, then file": 3 * size}[request.param]
    monkeypatch.setattr(client_states, "MEMORY_BYTES", limit)
    return limit


PUTS = [([4, 1], 0.5), ([1, 2], 7.0), ([0, 5, 4], -3.0)]


def test_whatever_is_put_it_reads_as_the_full_stack(limit: int) -> None:
    clients, full = ClientStates.from_initial(INITIAL, FACTS, COUNT), stack()
    for ids, start in PUTS:
        assert worlds.same(clients, full)
        index = torch.tensor(ids)
        clients = clients.replace_clients(index, values(ids, start))
        full = trees.replace_clients(full, index, values(ids, start))
    assert worlds.same(clients, full)
    assert worlds.same(clients.take([5, 3, 1]), trees.take(full, torch.tensor([5, 3, 1])))
    assert worlds.same(clients.client(2), trees.take(full, 2))
    assert worlds.same(clients.client(3), trees.take(full, 3))
    assert clients.are_in_file == (limit < 5 * trees.nbytes(INITIAL))
    assert worlds.same(clients.drop(["weight"]), trees.drop(full, ["weight"]))
    assert clients.nbytes == trees.nbytes(full) // COUNT
    assert [leaf.is_contiguous() for leaf in trees.leaves(clients)] == [True] * 5


def test_who_never_took_part_has_no_row_and_what_was_there_stays(limit: int) -> None:
    before = ClientStates.from_initial(INITIAL, FACTS, COUNT).replace_clients(
        torch.tensor([1]), values([1], 2.0)
    )
    seen = trees.apply(torch.clone, before.take(range(COUNT)))
    given = values([3, 1], 9.0)
    after = before.replace_clients(torch.tensor([3, 1]), given)
    assert (sorted(before.rows), sorted(after.rows)) == ([1], [1, 3])
    assert worlds.same(before, seen)
    kept = trees.apply(torch.clone, after.take([1, 3]))
    for leaf in trees.leaves(given):
        leaf.zero_()
    assert worlds.same(after.take([1, 3]), kept), "rows are in memory of their own"
    memory = [row for row in after.rows.values() if isinstance(row, np.ndarray)]
    assert all(row.base is None for row in memory), "a client that is trained again frees its row"


def test_what_clients_are_from_the_start_stays() -> None:
    clients = ClientStates.from_initial(INITIAL, FACTS, COUNT)
    other = {**values([1], 2.0), "counts": torch.tensor([[0, 0]])}
    with pytest.raises(FedloomError, match="counts of a client"):
        clients.replace_clients(torch.tensor([1]), other)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"step": torch.tensor([5])}, "has step"),
        ({"params": {"weight": torch.ones(1, 2, 3)}}, "lacks params/bias"),
        ({"steps": torch.ones(1, 2)}, "has steps of shape [2] instead of []"),
    ],
)
def test_a_client_keeps_the_tensors_that_it_had(change: dict[str, Any], said: str) -> None:
    clients = ClientStates.from_initial(INITIAL, FACTS, COUNT)
    with pytest.raises(FedloomError) as caught:
        clients.replace_clients(torch.tensor([1]), {**values([1], 2.0), **change})
    assert f"a method returned from `end` or `aggregate` {said}" in str(caught.value)


def test_places_that_nobody_holds_are_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_states, "MEMORY_BYTES", 0)
    first = clients = ClientStates.from_initial(INITIAL, FACTS, COUNT).replace_clients(
        torch.tensor([0, 1]), values([0, 1], 0.0)
    )
    seen = trees.apply(torch.clone, first.take([0, 1]))
    for start in range(9):
        clients = clients.replace_clients(torch.tensor([1, 2]), values([1, 2], start))
    used = {place.number for one in (first, clients) for place in one.rows.values()}
    assert used | {*clients.file.free} == set(range(6)), "two rounds of two are written at a time"
    assert worlds.same(first.take([0, 1]), seen)
    del first
    assert len(clients.file.free) == 3


def test_a_failed_round_leaves_the_clients_of_before(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_states, "MEMORY_BYTES", 0)
    initial = {"w": torch.zeros(5000)}
    begun = ClientStates.from_initial(initial, {}, 20)
    begun.file.folder = small_disk
    before = begun.replace_clients(torch.arange(9), {"w": torch.ones(9, 5000)})
    seen = trees.apply(torch.clone, before.take(range(20)))
    with pytest.raises(FedloomError, match=f"{small_disk}: the disk is full"):
        before.replace_clients(torch.arange(20), {"w": torch.full((20, 5000), 2.0)})
    assert worlds.same(before.take(range(20)), seen)
    after = before.replace_clients(torch.tensor([10]), {"w": torch.full((1, 5000), 3.0)})
    assert after.take([10])["w"].unique().tolist() == [3.0]
    begun.file.folder = None
    monkeypatch.setattr("tempfile.tempdir", str(small_disk / "absent"))
    fresh = ClientStates.from_initial(initial, {}, 20)
    with pytest.raises(FedloomError, match="TMPDIR"):
        fresh.replace_clients(torch.arange(1), {"w": torch.ones(1, 5000)})


@pytest.mark.parametrize("puts", [0, 3])
def test_what_is_saved_is_loaded(puts: int, limit: int, tmp_path: Path) -> None:
    begun = clients = ClientStates.from_initial(INITIAL, FACTS, COUNT)
    for ids, start in PUTS[:puts]:
        clients = clients.replace_clients(torch.tensor(ids), values(ids, start))
    # Class counts of all clients would be in every checkpoint of a run of very many.
    saved, row_file = clients.to_checkpoint(), None
    assert set(saved) - {"initial", "ids"} == (
        {"places", "digests"} if clients.are_in_file else {"rows"}
    )
    checkpoint.save_tree(saved, tmp_path / "clients")
    if clients.are_in_file:
        row_file = tmp_path / "rows"
        clients.file.link(row_file)
    saved = checkpoint.load_tree(tmp_path / "clients")
    message = begun.from_checkpoint(clients.to_message())
    for loaded in (begun.from_checkpoint(saved, tmp_path, row_file), message):
        assert sorted(loaded.rows) == sorted(clients.rows)
        assert loaded.are_in_file == clients.are_in_file
        assert worlds.same(loaded, clients)
        ids, start = PUTS[0]
        index, new = torch.tensor(ids), values(ids, start)
        assert worlds.same(*(one.replace_clients(index, new) for one in (loaded, clients)))


def test_rounds_with_clients_in_a_file_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Personal models and momentum, evaluated and kept; clients of two modalities as well."""
    for make in (worlds.world, modal_worlds.world):
        simulation = make("ditto", participation=0.6, rounds=4)
        ends = []
        for limit in (2**28, 2000, 0):
            monkeypatch.setattr(client_states, "MEMORY_BYTES", limit)
            end, rows = worlds.run(simulation, "stacked")
            assert end.client_states.are_in_file == (limit < 2**28)
            ends.append((end, rows, simulation.final_weights(end)))
        for end, rows, weights in ends[1:]:
            assert worlds.same(worlds.tree(end), worlds.tree(ends[0][0]))
            assert worlds.same(weights, ends[0][2])
            assert worlds.rows_agree(rows, ends[0][1], 0.0)


@pytest.mark.parametrize("method", ["ditto", "fedlgd"])
def test_rounds_give_rows_to_their_participants_alone(method: str) -> None:
    simulation = worlds.world(method, sizes=(9, 5, 12, 9, 6, 7, 19), participation=0.3, rounds=2)
    current = simulation.begin()
    assert not current.client_states.rows
    came: set[int] = set()
    for done in simulate.rounds(simulation, current, 0, "stacked"):
        called = simulation.round_schedule(done.number)
        came |= set(called.clients.tolist())
        everyone = any(one.all_clients for one in simulation.method.phases)
        if trees.leaves(current.client_states.initial):
            assert set(done.state.client_states.rows) == (came if not everyone else set(range(7)))
        current = done.state
    assert current.clients["id"].tolist() == list(range(7))
    assert trees.nbytes(simulation.begin().client_states.initial) == trees.nbytes(
        current.client_states.initial
    )
