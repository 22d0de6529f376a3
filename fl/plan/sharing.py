"""Work shared out on one machine: in few jobs, and so that its cores are busy to the end.

Every start of a job costs seconds in which nothing is trained, but few long jobs leave cores idle
when one of them takes longer than it was thought to. So there are as many jobs as run at once where
work is short, and several for each of these where it is long; all of about the same length.

A job that fails is waited for in vain by all that wait for it. So bundles are put together that
wait for the same, with those that start from them, and what is waited for from outside is a job
alone.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fl.plan.config import Execution

LEAST = 30.0
"""Seconds below which a job is not worth its start."""

ENOUGH = 120.0
"""Seconds of a job whose start costs little beside them."""

GUESSED = 2
"""Jobs for each that runs at once, where how long they take is a guess."""


@dataclass(frozen=True)
class Machine:
    """What jobs share: cores, and cards of those jobs that ask for any."""

    cores: int
    cards: int

    def at_once(self, execution: Execution, gpus: int = 0) -> int:
        """How many jobs of that kind run side by side."""
        cores = self.cores // max(1, execution.processes * execution.threads)
        return max(1, min(cores, self.cards // gpus) if gpus else cores)


@dataclass(frozen=True)
class Piece:
    """A bundle as it is shared out.

    Attributes:
        seconds: How long it takes.
        after: The pieces that have to be trained before it.
        kind: What pieces of a job have in common.
        at_once: How many jobs of that kind run side by side.
        most: Seconds that a job may last; only a piece alone takes longer.
    """

    name: str
    seconds: float
    after: tuple[str, ...]
    kind: tuple[str, ...]
    at_once: int
    most: float


def shared(pieces: Sequence[Piece], known: bool, longest: int) -> Iterator[list[str]]:
    """The names of the pieces of each job.

    Args:
        known: Whether their seconds are more than a guess.
        longest: Pieces of a job at most.
    """
    kinds: dict[tuple[str, ...], list[Piece]] = defaultdict(list)
    for piece in pieces:
        kinds[piece.kind].append(piece)
    for alike in kinds.values():
        work = sum(piece.seconds for piece in alike)
        share = work / alike[0].at_once
        wanted = max(1 if known else GUESSED, int(share // ENOUGH))
        several = max(1, min(wanted, int(share // LEAST)))
        length = min(max(LEAST, share / several), alike[0].most)
        for units in _units(alike, pieces, length):
            yield from _balanced(units, length, longest)


Unit = list[Piece]
"""Pieces that stay together."""


def _units(alike: Sequence[Piece], pieces: Sequence[Piece], length: float) -> Iterator[list[Unit]]:
    """Units that may be put into one job: those that wait for the same.

    Pieces that start from each other are a unit, unless that takes longer than a job should or a
    piece of another kind is among them.
    """
    own = {piece.name: piece for piece in alike}
    waiting: dict[tuple[str, ...], list[Unit]] = defaultdict(list)
    for family in _families(pieces):
        mine = [own[piece.name] for piece in family if piece.name in own]
        if len(mine) == len(family) and sum(piece.seconds for piece in mine) <= length:
            waiting[()].append(mine)
            continue
        starts = {start for piece in family for start in piece.after}
        for piece in mine:
            if piece.name in starts:
                yield [[piece]]
            else:
                waiting[piece.after].append([piece])
    yield from waiting.values()


def _families(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Pieces that have to do with each other: one starts from another, or both from a third."""
    root = {piece.name: piece.name for piece in pieces}

    def find(name: str) -> str:
        while root[name] != name:
            name = root[name]
        return name

    for piece in pieces:
        for start in piece.after:
            root[find(piece.name)] = find(start)
    found: dict[str, list[Piece]] = defaultdict(list)
    for piece in pieces:
        found[find(piece.name)].append(piece)
    return list(found.values())


def _balanced(units: list[Unit], length: float, longest: int) -> Iterator[list[str]]:
    """Jobs of about ``length`` seconds: the longest unit first, each to the job with least work."""
    costs = [sum(piece.seconds for piece in unit) for unit in units]
    few = math.ceil(sum(costs) / length - 0.1) if length else len(units)
    many = sum(map(len, units)) / longest
    count = min(len(units), max(1, few, math.ceil(many)))
    jobs: list[tuple[float, int, list[str]]] = [(0.0, number, []) for number in range(count)]
    order = sorted(range(len(units)), key=lambda i: (-costs[i], units[i][0].name))
    for i in order:
        filled, number, names = heapq.heappop(jobs)
        names += [piece.name for piece in units[i]]
        heapq.heappush(jobs, (filled + costs[i], number, names))
    yield from (names for _, _, names in sorted(jobs, key=lambda job: job[1]))
