"""Running the rounds of a method, on any of `fl.backends`.

One run, or several runs of one method whose clients are trained in one stack. Clients' trees live
in host memory; those who take part come to the device in groups that it has room for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl import compiled, trees
from fl.backends import BACKENDS, TOGETHER, Cohort
from fl.data.batches import Arrays, Schedule, together
from fl.method import Averaging, Method
from fl.trees import Tree

logger = logging.getLogger(__name__)

HOST = torch.device("cpu")

ROOM = 2**31
"""Bytes that the trees of clients trained at once may take. A constant, as how clients are grouped
decides the last bits of a result.
"""

COPIES = 6
"""How many times a client's and the server's tree are in memory while it is trained, about: what it
starts from, weights, gradients, momentum, what it keeps and what it sends.
"""


@dataclass(frozen=True)
class State:
    """What a run carries from round to round: the server's tree on the device, and in host memory
    the stack of all clients.
    """

    server: dict[str, Any]
    clients: dict[str, Any]

    def client(self, number: int, device: torch.device) -> dict[str, Any]:
        """One client's tree, on the device."""
        return trees.to(trees.take(self.clients, number), device)


@dataclass(frozen=True)
class Plan:
    """One round: who takes part, on which batches, at which learning rate.

    clients: ids of the participants, int64 [m], in host memory; n: their numbers of training
    samples, [m]; schedules: their batches in each pass, rows in the same order.
    """

    round: int
    clients: Tensor
    n: Tensor
    schedules: tuple[Schedule, ...]
    arrays: Arrays
    lr: float


def start(method: Method, variables: Tree, clients: int) -> State:
    """The state before round 1: every client starts alike, with its ``id``."""
    server, client = method.init(variables)
    stack = trees.repeat(trees.to(client, HOST), clients)
    return State(server, {**stack, "id": torch.arange(clients)})


def run_round(method: Method, state: State, plan: Plan, backend: str) -> tuple[State, Tensor]:
    """The state after one round, and the participants' mean training losses, [m]."""
    [done] = run_rounds([method], [state], [plan], backend)
    return done


def run_rounds(
    methods: Sequence[Method], states: Sequence[State], plans: Sequence[Plan], backend: str
) -> list[tuple[State, Tensor]]:
    """`run_round` for several runs that differ in their seed only, over the same samples."""
    if len(states) > 1 and backend not in TOGETHER:
        runs = zip(methods, states, plans, strict=True)
        return [run_round(*run, backend) for run in runs]
    kept, uploads, n, losses = _trained(methods[0], states, plans, backend)
    done = []
    for run, (method, state, plan) in enumerate(zip(methods, states, plans, strict=True)):
        server, clients = method.aggregate(
            state.server, trees.concatenate(kept[run]), trees.concatenate(uploads[run]), n[run]
        )
        home = trees.put(state.clients, plan.clients, trees.to(clients, HOST))
        done.append((State(server, home), torch.cat(losses[run])))
    return done


Shares = list[list[Any]]
"""By run, what its groups of clients gave."""


def _trained(
    method: Method, states: Sequence[State], plans: Sequence[Plan], backend: str
) -> tuple[Shares, Shares, list[Tensor], Shares]:
    """What the participants of every run keep and upload, the weight of each upload, and losses.

    Where an `Averaging` method's clients are too many for one group, each group's uploads are
    averaged with those before at once, and what its clients keep goes home.
    """
    groups = list(_groups(states, plans))
    averaging = len(groups) > 1 and isinstance(method.aggregate, Averaging)
    schedules = [together(parts) for parts in zip(*(plan.schedules for plan in plans), strict=True)]
    servers = trees.stack([s.server for s in states]) if len(states) > 1 else states[0].server
    kept: Shares = [[] for _ in states]
    uploads: Shares = [[] for _ in states]
    weights: Shares = [[] for _ in states]
    losses: Shares = [[] for _ in states]
    for rows, runs in groups:
        cohort = _cohort(states, plans, servers, rows, runs)
        for part, schedule in zip(method.passes, schedules, strict=True):
            cohort = replace(cohort, schedule=schedule.take(rows))
            clients, sent, loss = BACKENDS[backend](part, cohort)
            cohort = replace(cohort, clients=clients)
        n = torch.cat([plan.n for plan in plans])[rows]
        for run in np.unique(runs):
            own = torch.from_numpy(np.flatnonzero(runs == run)).to(n.device)
            share, weight = trees.take(sent, own), n[own]
            mine = trees.take(clients, own)
            if averaging:
                share, weight = _averaged([*uploads[run], share], [*weights[run], weight])
                uploads[run], weights[run] = [], []
                mine = trees.to(mine, HOST)
            kept[run].append(mine)
            uploads[run].append(share)
            weights[run].append(weight)
            losses[run].append(loss[own])
    return kept, uploads, [torch.cat(w) for w in weights], losses


def _averaged(shares: list[Tree], weights: list[Tensor]) -> tuple[dict[str, Any], Tensor]:
    """Stacks of uploads as one row, their weighted mean, and its weight."""
    means = [trees.mean(share, weight) for share, weight in zip(shares, weights, strict=True)]
    sums = torch.stack([weight.sum() for weight in weights])
    return trees.stack([trees.mean(trees.stack(means), sums)]), sums.sum(0, keepdim=True)


def _groups(states: Sequence[State], plans: Sequence[Plan]) -> Iterator[tuple[slice, np.ndarray]]:
    """Rows of the participants of all runs that are trained at once, and the run of each row."""
    runs = np.repeat(np.arange(len(plans)), [len(plan.clients) for plan in plans])
    each = trees.nbytes(states[0].server)
    each += trees.nbytes(states[0].clients) // len(states[0].clients["id"])
    size = max(1, ROOM // (COPIES * each))
    for begin in range(0, len(runs), size):
        rows = slice(begin, min(begin + size, len(runs)))
        yield rows, runs[rows]


def _cohort(
    states: Sequence[State], plans: Sequence[Plan], servers: Tree, rows: slice, runs: np.ndarray
) -> Cohort:
    """Some participants, on the device; the schedule is that of the first pass of all."""
    first, several = plans[0], len(states) > 1
    ids = torch.cat([plan.clients for plan in plans])[rows]
    chosen = [
        trees.take(states[run].clients, ids[torch.from_numpy(runs == run)])
        for run in np.unique(runs)
    ]
    server = servers
    if several:
        server = trees.take(servers, torch.from_numpy(runs).to(first.arrays.device))
    return Cohort(
        clients=trees.to(trees.concatenate(chosen), first.arrays.device),
        ids=ids,
        server=server,
        several=several,
        schedule=first.schedules[0],
        arrays=first.arrays,
        round=first.round,
        lr=first.lr,
    )


PAYS = 600.0
"""Seconds of work ahead from which compiling, which takes tens of seconds, is worth a try."""


def choose(
    methods: Sequence[Method], states: Sequence[State], plans: Sequence[Plan], rounds: int
) -> tuple[str, dict[str, float]]:
    """The fastest backend for ``rounds`` rounds like ``plans``, by a few real steps of each.

    Returns its name and the seconds a step of all participants took, by backend. Compiling is tried
    only where so much work lies ahead that it can pay. Nothing of the trial is kept.
    """
    # What a pass refreshes takes as long on every backend, and longer than steps.
    plain = [replace(m, passes=tuple(replace(p, refreshes=()) for p in m.passes)) for m in methods]

    def seconds(name: str, steps: int) -> float:
        return seconds_a_step(plain, states, plans, name, steps)

    found = {name: seconds(name, 3) for name in ("loop", "stacked")}
    # Twice in turn, so that a moment in which the machine is busy does not decide.
    found = {name: min(first, seconds(name, 3)) for name, first in found.items()}
    device, simple = plans[0].arrays.device, not any(p.refreshes for p in methods[0].passes)
    steps = rounds * sum(int(s.steps.max()) for s in plans[0].schedules)
    if simple and min(found.values()) * steps > PAYS and compiled.available(device):
        try:
            found["compiled"] = seconds("compiled", 3 * compiled.CHUNK)
        except Exception as error:  # A compiler that does not work, or code it cannot take.
            reason = str(error).strip().split("\n")[0]
            logger.warning("not compiled (%s: %s)", type(error).__name__, reason)
    return min(found, key=found.__getitem__), found


def seconds_a_step(
    methods: Sequence[Method],
    states: Sequence[State],
    plans: Sequence[Plan],
    backend: str,
    steps: int,
    tries: int = 3,
) -> float:
    """Seconds that a step of all participants takes: the shortest of some tries.

    The first try also warms up, and compiles.
    """
    refreshes = [part.refreshes for part in methods[0].passes]
    trials = [
        replace(
            plan,
            schedules=tuple(
                s.begin(steps, r) for s, r in zip(plan.schedules, refreshes, strict=True)
            ),
        )
        for plan in plans
    ]
    times = []
    for _ in range(tries):
        begun = time.perf_counter()
        done = run_rounds(methods, states, trials, backend)
        sum(losses.sum().item() for _, losses in done)
        times.append(time.perf_counter() - begun)
    return min(times) / sum(int(s.steps.max()) for s in trials[0].schedules)
