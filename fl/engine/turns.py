"""Rows of a compiled stack: clients take turns, so that few rows are idle.

The stack of a compiled program keeps its width. If each client had its own row, the program would
train finished clients for nothing until the client with most steps has finished. So there are fewer
rows than clients, and a row that becomes free goes to the next client.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

WIDTH_UNITS, MIN_WIDTH_SHARE = 8, 0.25
"""Widths are whole eighths of the number of clients, and at least a quarter of it. So few programs
serve many partitions, and rounds whose clients have about equal work take only a few turns.
"""


class Turns(NamedTuple):
    """The client in each row at each time, and its completed work.

    Attributes:
        clients: Clients, int64 [times, width]; the last client of a row stays in it.
        completed: Completed work of that client, int64 [times, width]; a client has finished when
            this equals its work.
    """

    clients: np.ndarray
    completed: np.ndarray


class Spell(NamedTuple):
    """A range of times, [begin, end), in which all rows keep their clients, int64 [width]."""

    begin: int
    end: int
    clients: np.ndarray


def split_spells(turns: Turns) -> list[Spell]:
    """Split turns into consecutive spells."""
    has_change = (turns.clients[1:] != turns.clients[:-1]).any(1)
    ends = [*(np.flatnonzero(has_change) + 1).tolist(), len(turns.clients)]
    return [Spell(begin, end, turns.clients[begin]) for begin, end in pairwise([0, *ends])]


def stack_width(clients: int, work: np.ndarray) -> int:
    """Return the number of rows for a number of clients.

    Args:
        clients: Number of clients that are trained.
        work: Work of all clients that may be trained, so that every round has the same width.
    """
    largest = work.max(initial=0)
    mean_share = work.mean() / largest if largest else 1.0
    width_share = max(MIN_WIDTH_SHARE, round(WIDTH_UNITS * mean_share) / WIDTH_UNITS)
    return int(np.ceil(clients * width_share))


def assign_turns(work: np.ndarray, width: int) -> Turns:
    """Assign clients to rows: those with most work first, each to the row that is free soonest.

    Args:
        work: Work of each client, in units of one time; for at least ``width`` clients.
        width: Number of rows.

    Returns:
        The client in each row at each time.
    """
    order = np.argsort(-work, kind="stable")
    rows = [[client] for client in order[:width]]
    ends = work[order[:width]]
    for client in order[width:]:
        row = int(ends.argmin())
        rows[row].append(client)
        ends[row] += work[client]
    times = int(ends.max(initial=1))
    clients, completed = np.zeros((2, times, width), np.int64)
    for row, queue in enumerate(rows):
        begin = 0
        for client in queue:
            clients[begin:, row] = client
            completed[begin:, row] = np.arange(times - begin).clip(max=work[client])
            begin += work[client]
    return Turns(clients, completed)
