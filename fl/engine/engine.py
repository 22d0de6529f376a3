"""Running the rounds of a method, on any of `fl.engine.backends`.

One run, or several runs of one method whose clients are trained in one stack. Clients' trees live
in host memory; those who take part come to the device in groups that it has room for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import COUNTS, MODALITY, PAYLOAD, Averaging, Method, Phase, Sweep
from fl.api.trees import Tree
from fl.engine.backends import BACKENDS, TOGETHER, Cohort, Trained
from fl.engine.batches import Schedule, together
from fl.engine.clients import Clients
from fl.engine.midway import INNER, UNWATCHED, Midway, listed, moved, numbered, unlisted
from fl.engine.processes import COUNT
from fl.engine.state import Plan as Plan
from fl.engine.state import Schedules
from fl.engine.state import State as State
from fl.engine.sweeps import sweep

HOST = torch.device("cpu")

ROOM = 2**31
"""Bytes that the trees of clients trained at once may take. A constant, as how clients are grouped
decides the last bits of a result.
"""

COPIES = 6
"""How many times a client's and the server's tree are in memory while it is trained, about: what it
starts from, weights, gradients, momentum, what it keeps and what it sends.
"""


def start(
    method: Method, variables: Tree, counts: Tensor, modality: np.ndarray | None = None
) -> State:
    """The state before round 1: every client starts alike, with its ``id`` and class counts.

    counts: training samples of every client by class, int64 [clients, classes]; modality: of every
    client, [clients], where they differ in it.
    """
    server, client = method.init(variables)
    facts = {"id": torch.arange(len(counts)), COUNTS: counts}
    if modality is not None:
        facts = {MODALITY: torch.from_numpy(modality), **facts}
    return State(server, Clients.alike(trees.to(client, HOST), facts, len(counts)))


def run_round(method: Method, state: State, plan: Plan, backend: str) -> tuple[State, Tensor]:
    """The state after one round, and the participants' mean training losses, [m]."""
    [done] = run_rounds([method], [state], [plan], backend)
    return done


def run_rounds(
    methods: Sequence[Method],
    states: Sequence[State],
    plans: Sequence[Plan],
    backend: str,
    midway: Midway = UNWATCHED,
) -> list[tuple[State, Tensor]]:
    """`run_round` for several runs that differ in their seed only, over the same samples.

    midway: what is kept on the way; nothing where runs are trained one after another.
    """
    if len(states) > 1 and backend not in TOGETHER:
        runs = zip(methods, states, plans, strict=True)
        return [run_round(*run, backend) for run in runs]
    losses: list[Tensor] = []
    first, done = midway.first("phase"), midway.begun.get("states", {})
    before: Callable[[], Tree] = partial(dict, done)
    if done:
        states = unpacked(done, plans[0].arrays.device)
    for number, schedules in enumerate(plans[0].phases):
        if schedules is not None and number >= first:
            phases = [method.phases[number] for method in methods]
            called = [plan.of(phases[0]) for plan in plans]
            inner = midway.within("phase", number, partial(_states, before))
            states, losses = _exchanged(phases, states, called, number, backend, inner)
            before = partial(packed, states)
    return list(zip(states, losses, strict=True))


def _states(done: Callable[[], Tree]) -> Tree:
    return {"states": done()}


def packed(states: Sequence[State]) -> Tree:
    """The states of several runs as one tree."""
    return listed({"server": one.server, "clients": one.home.saved()} for one in states)


def unpacked(tree: Tree, device: torch.device) -> list[State]:
    """The states that `packed` was given, on the device where they are trained."""
    return [
        State(moved(one["server"], device), Clients.loaded(one["clients"])) for one in tree.values()
    ]


def _exchanged(
    phases: Sequence[Phase],
    states: Sequence[State],
    plans: Sequence[Plan],
    number: int,
    backend: str,
    midway: Midway,
) -> tuple[list[State], list[Tensor]]:
    """The states after one phase of every run, and the losses of its last training pass."""
    done = []
    group, by = plans[0].group, midway.begun.get(COUNT)
    if by is not None and int(by) != (group.size if group else 1):
        # Dealt to another number of processes, the phase begins again.
        midway, by = midway.afresh(), None
    # What one process has begun, it finishes, as others cannot go on from there.
    if group and (by is not None or not midway.begun):
        found = group.trained(phases[0], states, plans, number, backend, midway)
    else:
        found = trained(phases[0], states, plans, number, backend, midway)
    for phase, state, plan, own in zip(phases, states, plans, found, strict=True):
        server, clients = phase.aggregate(
            state.server,
            trees.concatenate(own.kept),
            trees.concatenate(own.uploads),
            torch.cat(own.n),
        )
        home = state.home.put(plan.clients, trees.to(clients, HOST))
        done.append(State(server, home))
    return done, [torch.cat(own.losses) for own in found]


NOTHING = Schedule(np.zeros((0, 0, 0), np.int64), np.zeros((0, 0, 0), bool), np.zeros(0, np.int64))
"""The schedule of a cohort before its first pass."""


@dataclass(frozen=True)
class Gathered:
    """What the participants of one run gave, a stack for each group; n: the weight of each upload,
    which the method is told.
    """

    kept: list[Tree] = field(default_factory=list)
    uploads: list[Tree] = field(default_factory=list)
    n: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)

    def add(self, trained: Trained, n: Tensor, own: slice | Tensor, averaging: bool) -> None:
        """A group, of which the rows ``own`` are this run's; n: of all the group's clients.

        averaging: its uploads are averaged with those before at once, and what its clients keep
        goes home.
        """
        share, weight = trees.take(trained.uploads, own), n[own]
        kept = trees.take(trained.kept, own)
        if averaging:
            share, weight = averaged([*self.uploads, share], [*self.n, weight])
            self.uploads.clear()
            self.n.clear()
            kept = trees.to(kept, HOST)
        self.kept.append(kept)
        self.uploads.append(share)
        self.n.append(weight)
        self.losses.append(trained.losses[own])

    def tree(self) -> Tree:
        """All of it, for `of`."""
        return {
            "kept": listed(self.kept),
            "uploads": listed(self.uploads),
            "n": numbered(self.n),
            "losses": numbered(self.losses),
        }

    @classmethod
    def of(cls, tree: Tree, device: torch.device, averaging: bool) -> Gathered:
        """What `tree` gave, where `add` puts it."""
        return cls(
            [*unlisted(tree["kept"], HOST if averaging else device)],
            [*unlisted(tree["uploads"], device)],
            trees.leaves(trees.to(tree["n"], device)),
            trees.leaves(trees.to(tree["losses"], device)),
        )


def trained(
    phase: Phase,
    states: Sequence[State],
    plans: Sequence[Plan],
    number: int,
    backend: str,
    midway: Midway = UNWATCHED,
) -> list[Gathered]:
    """What the participants of every run give; those of an `Averaging` method, where they are too
    many for one group, averaged.
    """
    groups = list(_groups(states, plans))
    averaging = len(groups) > 1 and isinstance(phase.aggregate, Averaging)
    schedules, servers = _schedules(plans, number), _servers(phase, states)
    n = torch.cat([plan.n for plan in plans])
    before = midway.begun.get("gathered", {}).values()
    found = [Gathered.of(tree, n.device, averaging) for tree in before]
    found = found or [Gathered() for _ in states]
    for place, (rows, runs) in enumerate(groups):
        if place < midway.first("group"):
            continue
        cohort = _cohort(phase, states, plans, servers, rows, runs)
        inner = midway.within("group", place, partial(_gathered, found))
        done = _worked(phase, cohort, schedules, rows, backend, inner)
        for run in np.unique(runs):
            own = runs == run
            chosen = slice(None) if own.all() else _places(own).to(n.device)
            found[run].add(done, n[rows], chosen, averaging)
    return found


def _places(chosen: np.ndarray) -> Tensor:
    return torch.from_numpy(np.flatnonzero(chosen))


def over(states: Sequence[State], plans: Sequence[Plan], found: Sequence[Gathered]) -> Tree:
    """What `trained` goes on from, as a level of `Midway`, where all of it is done."""
    groups = torch.tensor(len([*_groups(states, plans)]))
    return {"group": groups, **_gathered(found), INNER: {}}


def _gathered(found: Sequence[Gathered]) -> Tree:
    return {"gathered": listed(one.tree() for one in found)}


def _schedules(plans: Sequence[Plan], number: int) -> Schedules:
    """The batches of the participants of all runs, in each pass of a phase."""
    by_pass = zip(*(plan.phases[number] or () for plan in plans), strict=True)
    return tuple(together([s for s in parts if s]) if all(parts) else None for parts in by_pass)


def _servers(phase: Phase, states: Sequence[State]) -> Tree:
    """What clients are sent: one tree, or a stack with that of each of several runs."""
    sent = [phase.send(s.server) if phase.send else s.server for s in states]
    return trees.stack(sent) if len(states) > 1 else sent[0]


def _worked(
    phase: Phase,
    cohort: Cohort,
    schedules: Schedules,
    rows: slice,
    backend: str,
    midway: Midway,
) -> Trained:
    """The passes of a cohort: what its clients keep, what they send, the last training loss."""
    device = cohort.arrays.device
    done = Trained(
        cohort.clients, {}, torch.zeros(len(cohort.ids), dtype=torch.float64, device=device)
    )
    if "done" in midway.begun:
        done = Trained(**moved(midway.begun["done"], device))
    for number, (part, schedule) in enumerate(zip(phase.passes, schedules, strict=True)):
        if schedule is None or number < midway.first("pass"):
            continue
        now = replace(cohort, clients=done.kept, schedule=schedule.take(rows))
        if isinstance(part, Sweep):
            done = Trained(*sweep(part, now, done.uploads, backend), done.losses)
            after = midway.within("pass", number + 1, partial(_passed, done))
            if after.due():
                after.keep({})
        else:
            inner = midway.within("pass", number, partial(_passed, done) if number else dict)
            done = BACKENDS[backend](part, now, inner)
    kept = dict(done.kept)
    if phase.payload:
        del kept[PAYLOAD]
    return done._replace(kept=kept)


def _passed(done: Trained) -> Tree:
    return {"done": done._asdict()}


def averaged(shares: list[Tree], weights: list[Tensor]) -> tuple[dict[str, Any], Tensor]:
    """Stacks of uploads as one row, their weighted mean, and its weight."""
    means = [trees.mean(share, weight) for share, weight in zip(shares, weights, strict=True)]
    sums = torch.stack([weight.sum() for weight in weights])
    return trees.stack([trees.mean(trees.stack(means), sums)]), sums.sum(0, keepdim=True)


def _groups(states: Sequence[State], plans: Sequence[Plan]) -> Iterator[tuple[slice, np.ndarray]]:
    """Rows of the participants of all runs that are trained at once, and the run of each row."""
    runs = np.repeat(np.arange(len(plans)), [len(plan.clients) for plan in plans])
    each = trees.nbytes(states[0].server) + states[0].home.nbytes
    size = max(1, ROOM // (COPIES * each))
    for begin in range(0, len(runs), size):
        rows = slice(begin, min(begin + size, len(runs)))
        yield rows, runs[rows]


def _cohort(
    phase: Phase,
    states: Sequence[State],
    plans: Sequence[Plan],
    servers: Tree,
    rows: slice,
    runs: np.ndarray,
) -> Cohort:
    """Some participants, on the device, with what the server gives each; no schedule yet."""
    first, several = plans[0], len(states) > 1
    ids = torch.cat([plan.clients for plan in plans])[rows]
    chosen = []
    for run in np.unique(runs):
        own = ids[torch.from_numpy(runs == run)]
        clients = states[run].some(own, first.arrays.device)
        if phase.payload:
            # By run, so that a large server is not copied for every client of a stack.
            given = trees.vmap(phase.payload, (None, 0))(states[run].server, clients)
            clients = {**clients, PAYLOAD: given}
        chosen.append(clients)
    stack, server = trees.concatenate(chosen), servers
    if several:
        server = trees.take(servers, torch.from_numpy(runs).to(first.arrays.device))
    return Cohort(
        clients=stack,
        ids=stack["id"],
        server=server,
        several=several,
        schedule=NOTHING,
        arrays=first.arrays,
        round=first.round,
        lr=first.lr,
        usual=first.usual,
    )
