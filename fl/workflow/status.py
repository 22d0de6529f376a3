"""How far a plan is, read from its store alone: by anyone, on any host that sees the store.

A run is *done* if it is in the store. Otherwise it is *running* if a live process holds it,
*failed* if the last process that tried left an error, *interrupted* if it ended otherwise, and
*waiting* if there was none yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fl.base.errors import DataError
from fl.base.units import duration, quantity
from fl.plan import plan_files
from fl.plan.bundle import Bundle
from fl.plan.estimate import Rates
from fl.runner import slurm
from fl.store.attempts import Attempt
from fl.store.store import Store

Why = Callable[[Attempt], str]

STATES = ("done", "running", "failed", "interrupted", "waiting")

MANY = 40
"""Unfinished runs that are named where something else was asked for."""

WHY = {
    "time": "its time was nearly over",
    "memory": "it exceeded its memory",
    "node": "its node failed",
    "cancelled": "it was cancelled",
    "killed": "it was killed, by nobody knows whom; memory may have run out",
    "": "its job goes on",
}
"""How an attempt ended, in words."""


@dataclass(frozen=True)
class Standing:
    """The state of one run.

    Attributes:
        round: That of its newest checkpoint.
        note: Its holder, or how the last attempt ended: why, in which job, with which log.
        processes: That train it together.
    """

    run: str
    title: str
    spec: Mapping[str, Any]
    state: str
    round: int = 0
    note: str = ""
    processes: int = 1

    @property
    def left(self) -> float:
        """The share of its rounds that is still to do."""
        return 0.0 if self.state == "done" else 1 - self.round / self.spec["training"]["rounds"]


def bundles(results: Path) -> list[Bundle]:
    """The bundles of the plan in ``<results>/plan``, as Snakemake goes by it."""
    home = results / "plan"
    summary = plan_files.read_summary(home)
    if not summary:
        raise DataError(f"{home}: there is no plan yet; make one: python -m fl plan --write")
    return [plan_files.read_bundle(home, name) for name in summary["bundles"]]


def look(planned: Sequence[Bundle], store: Store) -> list[Standing]:
    """The present state of every run of these bundles."""
    there = {path.name for path in store.root.iterdir()} if store.root.exists() else set()
    why = cache(slurm.ended)  # Runs of one job ended for one reason.
    return [standing for bundle in planned for standing in _bundle(bundle, store, there, why)]


def _bundle(bundle: Bundle, store: Store, there: set[str], why: Why) -> Iterator[Standing]:
    runs, processes = [member.run for member in bundle.runs], bundle.execution.processes
    begun = [run for run in runs if f"{run}.partial" in there]
    rounds = {run: store.round(run) or 0 for run in begun}
    # Runs of a stack have one checkpoint, with the first of them.
    most = max(rounds.values(), default=0)
    for member in bundle.runs:
        run = member.run
        seed = f"{bundle.title}, seed {member.seed}"
        if run in there and store.has(run, member.keep):
            yield Standing(run, seed, member.spec, "done")
            continue
        holder = store.holder(run) if run in begun else None
        if holder is not None:
            done = rounds[run] or most
            yield Standing(run, seed, member.spec, "running", done, holder, processes)
            continue
        last = slurm.last(store, run, why) if run in begun else None
        if last is None:
            state = "interrupted" if rounds.get(run) else "waiting"
            yield Standing(run, seed, member.spec, state, rounds.get(run, 0), processes=processes)
        else:
            state = "failed" if last.ended == "error" else "interrupted"
            done = rounds[run] or (most if last.stacked else 0)
            yield Standing(run, seed, member.spec, state, done, _note(last), processes)


def _note(last: Attempt) -> str:
    """How an attempt ended."""
    job = f"{last.scheduler} job {last.job}" if last.job else ""
    location = ", ".join(filter(None, [job, f"log {last.log}" if last.log else ""]))
    return f"{last.error or WHY[last.ended]}{f' ({location})' if location else ''}"


def line(standings: Sequence[Standing], rates: Rates) -> str:
    """A summary in one line: ``12 of 15 runs done, 2 running, 1 failed, about 3 min left``."""
    counts = Counter(standing.state for standing in standings)
    parts = [f"{counts['done']} of {len(standings)} runs done"]
    parts += [f"{counts[state]} {state}" for state in STATES[1:4] if counts[state]]
    if counts["done"] < len(standings):
        parts.append(_time_left(standings, rates))
    return ", ".join(parts)


def _time_left(standings: Sequence[Standing], rates: Rates) -> str:
    left = [
        (standing, rates.seconds([standing.spec]))
        for standing in standings
        if standing.state != "done"
    ]
    holders = {standing.note for standing, _ in left if standing.state == "running"}
    if any(seconds is None for _, seconds in left):
        return "time left unknown until a run like each of them is done"
    total = sum(standing.left * (seconds or 0.0) / standing.processes for standing, seconds in left)
    by = f" by {len(holders)} at once" if len(holders) > 1 else ""
    return f"about {duration(total / max(1, len(holders)))} left{by}"


def lines(standings: Sequence[Standing], rates: Rates) -> Iterator[str]:
    """A line for every run that is running, failed or interrupted, and then `line`."""
    for state in STATES[1:4]:
        for standing in standings:
            if standing.state == state:
                yield f"{state:12} {_told(standing)}"
    yield from rates.remarks
    yield line(standings, rates)


def unfinished(standings: Sequence[Standing]) -> Iterator[str]:
    """A line for each run that was begun and is not done, and one for those that were not begun."""
    begun = [standing for standing in standings if standing.state in STATES[1:4]]
    yield from (f"  {_told(standing)}" for standing in begun[:MANY])
    if len(begun) > MANY:
        yield f"  and {len(begun) - MANY} more: python -m fl status"
    if waiting := sum(standing.state == "waiting" for standing in standings):
        yield f"  {quantity(waiting, 'run')} not begun"


def _told(standing: Standing) -> str:
    rounds = f"round {standing.round} of {standing.spec['training']['rounds']}"
    note = f", {standing.note}" if standing.note else ""
    return f"{standing.run}  {standing.title}: {rounds}{note}"
