"""Clients of which only those who took part have rows are what a full stack would be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import worlds

from fl.api import trees
from fl.base.errors import FedloomError
from fl.engine import simulate
from fl.engine.state import ClientStates
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


PUTS = [([4, 1], 0.5), ([1, 2], 7.0), ([0, 5, 4], -3.0)]


def test_whatever_is_put_it_reads_as_the_full_stack() -> None:
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
    assert clients.nbytes == trees.nbytes(full) // COUNT
    assert [leaf.is_contiguous() for leaf in trees.leaves(clients)] == [True] * 5


def test_who_never_took_part_has_no_row_and_what_was_there_stays() -> None:
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


@pytest.mark.parametrize("puts", [0, 3])
def test_what_is_saved_is_loaded(puts: int, tmp_path: Any) -> None:
    begun = clients = ClientStates.from_initial(INITIAL, FACTS, COUNT)
    for ids, start in PUTS[:puts]:
        clients = clients.replace_clients(torch.tensor(ids), values(ids, start))
    # Class counts of all clients would be in every checkpoint of a run of very many.
    assert set(clients.to_checkpoint()) == {"initial", "ids", "rows"}
    checkpoint.save_tree(clients.to_checkpoint(), tmp_path / "clients")
    loaded = begun.from_checkpoint(checkpoint.load_tree(tmp_path / "clients"))
    assert sorted(loaded.rows) == sorted(clients.rows)
    assert worlds.same(loaded, clients)
    ids, start = PUTS[0]
    same = [one.replace_clients(torch.tensor(ids), values(ids, start)) for one in (loaded, clients)]
    assert worlds.same(*same)


@pytest.mark.parametrize("method", ["ditto", "fedlgd"])
def test_rounds_give_rows_to_their_participants_alone(method: str) -> None:
    simulation = worlds.world(method, sizes=(9, 5, 12, 9, 6, 7, 19), participation=0.3, rounds=2)
    state = simulation.begin()
    assert not state.client_states.rows
    came: set[int] = set()
    for done in simulate.rounds(simulation, state, 0, "stacked"):
        called = simulation.round_schedule(done.number)
        came |= set(called.clients.tolist())
        everyone = any(one.all_clients for one in simulation.method.phases)
        if trees.leaves(state.client_states.initial):
            assert set(done.state.client_states.rows) == (came if not everyone else set(range(7)))
        state = done.state
    assert state.clients["id"].tolist() == list(range(7))
    assert trees.nbytes(simulation.begin().client_states.initial) == trees.nbytes(
        state.client_states.initial
    )
