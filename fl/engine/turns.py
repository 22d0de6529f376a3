"""Clients who take turns in the rows of a stack that keeps its width, as a compiled program's does.

If each had a row to itself, those who have finished would be trained on for nothing until the one
with most steps has. So there are fewer rows, and one that becomes free goes to the next client.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

EIGHTHS, LEAST = 8, 0.25
"""Widths are whole eighths of the clients, and at least a quarter: so few programs serve many
partitions, and rounds whose clients happen to have about as much to do take a few turns at most.
"""


class Turns(NamedTuple):
    """Who is in which row at which time, and how much of its work is done by then.

    Attributes:
        clients: int64 [times, width]; whoever comes last in a row stays.
        done: Likewise; a client has finished where it is as much as its work.
    """

    clients: np.ndarray
    done: np.ndarray


class Spell(NamedTuple):
    """Times, [begin, end), at which the same clients are in all rows, int64 [width]."""

    begin: int
    end: int
    clients: np.ndarray


def spells(turns: Turns) -> list[Spell]:
    """All of them, one after another."""
    changes = (turns.clients[1:] != turns.clients[:-1]).any(1)
    ends = [*(np.flatnonzero(changes) + 1).tolist(), len(turns.clients)]
    return [Spell(begin, end, turns.clients[begin]) for begin, end in pairwise([0, *ends])]


def width(clients: int, work: np.ndarray) -> int:
    """How many rows so many clients need.

    Args:
        work: Of all clients from whom they come: so the width is that of every round.
    """
    most = work.max(initial=0)
    even = work.mean() / most if most else 1.0
    return int(np.ceil(clients * max(LEAST, round(EIGHTHS * even) / EIGHTHS)))


def turns(work: np.ndarray, width: int) -> Turns:
    """Those with most work first, each in the row that becomes free soonest.

    Args:
        work: Of each client, in whatever a turn is counted in; at least ``width`` of them.
    """
    order = np.argsort(-work, kind="stable")
    rows = [[client] for client in order[:width]]
    ends = work[order[:width]]
    for client in order[width:]:
        row = int(ends.argmin())
        rows[row].append(client)
        ends[row] += work[client]
    times = int(ends.max(initial=1))
    clients, done = np.zeros((2, times, width), np.int64)
    for row, queue in enumerate(rows):
        begin = 0
        for client in queue:
            clients[begin:, row] = client
            done[begin:, row] = np.arange(times - begin).clip(max=work[client])
            begin += work[client]
    return Turns(clients, done)
