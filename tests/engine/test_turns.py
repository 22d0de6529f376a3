"""Clients who take turns in the rows of a stack: everyone's work is done once, in few turns."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fl.engine.compiled import assign_turns, turn_width

WORK = [[3, 3, 3], [8, 2, 3, 5, 7, 7, 4, 6, 3, 5], [9, 1, 0, 1, 1, 1], [0, 0, 0], [1], [5] * 7]


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_everyone_does_all_of_its_work_in_one_row(work: list[int], rows: int) -> None:
    found = assign_turns(np.array(work), min(rows, len(work)))
    for client, own in enumerate(work):
        busy = (found.clients == client) & (found.completed < own)
        times, places = np.nonzero(busy)
        assert found.completed[busy].tolist() == list(range(own))
        assert len({*places}) <= 1 and all(b - a == 1 for a, b in pairwise(times))
    assert all(len({*clients}) == len(clients) for clients in found.clients), "nobody is twice"


def test_those_with_most_work_come_first_and_no_row_is_long() -> None:
    work = np.array([8, 2, 3, 5, 7, 7, 4, 6, 3, 5])
    found = assign_turns(work, 7)
    assert found.clients[0].tolist() == [0, 4, 5, 7, 3, 9, 6]
    assert len(found.clients) == work.max() == 8
    assert len(assign_turns(work, 5).clients) == work.sum() / 5 == 10


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        ([1] * 9 + [91], 3),
        ([5, 10], 8),
        ([2, 3, 3, 4, 5, 5, 6, 7, 7, 8], 7),
        ([0, 0], 10),
        ([], 10),
    ],
)
def test_rows_are_as_many_as_clients_are_busy_on_average_in_eighths(
    work: list[int], expected: int
) -> None:
    assert turn_width(10, np.array(work)) == expected
