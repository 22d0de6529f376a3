"""From a round to a gradient step: round, phase, cohort, step.

`run_rounds` takes the phases of a round one after another and aggregates what clients answer,
`run_phase` takes the clients of a phase in cohorts that the device has room for, and one of
`fl.engine.backends` trains a cohort in a pass, step by step. One run, or several runs of one method
whose clients are trained in one stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import COUNTS, MODALITY, PAYLOAD, Method, Phase, Sweep, WeightedAverage
from fl.api.trees import Tree
from fl.engine.backends import BACKENDS, TOGETHER, Cohort, Trained
from fl.engine.batches import Schedule, together
from fl.engine.client_states import ClientStates
from fl.engine.processes import Deal
from fl.engine.state import HOST, Answers, Roster, RoundPlan, Schedules, State
from fl.engine.sweeps import sweep

ROOM = 2**31
"""Bytes that the trees of clients trained at once may take. A constant, as how clients are grouped
decides the last bits of a result.
"""

COPIES = 6
"""How many times a client's and the server's tree are in memory while it is trained, about: what it
starts from, weights, gradients, momentum, what it keeps and what it sends.
"""

NOTHING = Schedule(np.zeros((0, 0, 0), np.int64), np.zeros((0, 0, 0), bool), np.zeros(0, np.int64))
"""The schedule of a cohort before its first pass."""


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
    return State(server, ClientStates.alike(trees.to(client, HOST), facts, len(counts)))


def run_round(method: Method, state: State, plan: RoundPlan, backend: str) -> tuple[State, Tensor]:
    """The state after one round, and the participants' mean training losses, [m]."""
    [done] = run_rounds([method], [state], [plan], backend)
    return done


def run_rounds(
    methods: Sequence[Method], states: Sequence[State], plans: Sequence[RoundPlan], backend: str
) -> list[tuple[State, Tensor]]:
    """`run_round` for several runs that differ in their seed only, over the same samples."""
    if len(states) > 1 and backend not in TOGETHER:
        runs = zip(methods, states, plans, strict=True)
        return [run_round(method, state, plan, backend) for method, state, plan in runs]
    losses: list[Tensor] = []
    for number, phases in enumerate(zip(*(method.phases for method in methods), strict=True)):
        if plans[0].rosters[number] is not None:
            rosters = [roster for plan in plans if (roster := plan.rosters[number])]
            answers = run_phase(phases[0], states, rosters, plans[0], backend)
            states = [
                _aggregated(phase, state, roster, answer)
                for phase, state, roster, answer in zip(
                    phases, states, rosters, answers, strict=True
                )
            ]
            losses = [torch.cat(answer.losses) for answer in answers]
    return list(zip(states, losses, strict=True))


def run_phase(
    phase: Phase,
    states: Sequence[State],
    rosters: Sequence[Roster],
    plan: RoundPlan,
    backend: str,
) -> list[Answers]:
    """What the participants of every run answer in a phase.

    plan: of one of the runs, for what they have in common.
    """
    several = len(states) > 1
    deal = Deal.of(plan.team, rosters) if plan.team else None
    mine = deal.mine() if deal else rosters
    groups = list(_groups(states, mine))
    averaging = isinstance(phase.aggregate, WeightedAverage) and (
        deal is not None or len(groups) > 1
    )
    sent = [phase.send(state.server) if phase.send else state.server for state in states]
    servers = trees.stack(sent) if several else sent[0]
    schedules = _together(mine)
    n = plan.weights(torch.cat([roster.n for roster in mine]))
    answers = [Answers() for _ in states]
    for rows, runs in groups:
        cohort = _cohort(phase, states, mine, servers, plan, rows, runs)
        untrained = torch.zeros(len(cohort.ids), dtype=torch.float64, device=n.device)
        done = Trained(cohort.clients, {}, untrained)
        for pass_, schedule in zip(phase.passes, schedules, strict=True):
            if schedule is None:
                continue
            now = replace(cohort, clients=done.kept, schedule=schedule.take(rows))
            if isinstance(pass_, Sweep):
                done = Trained(*sweep(pass_, now, done.uploads, backend), done.losses)
            else:
                done = BACKENDS[backend](pass_, now)
        kept = {key: tree for key, tree in done.kept.items() if key != PAYLOAD or not phase.payload}
        for run in np.unique(runs):
            # A slice copies nothing where the group is of one run.
            its = torch.from_numpy(np.flatnonzero(runs == run)).to(n.device)
            chosen = slice(None) if len(its) == len(runs) else its
            answers[run].add(
                trees.take(kept, chosen),
                trees.take(done.uploads, chosen),
                n[rows][chosen],
                done.losses[chosen],
                averaging,
            )
    return deal.gathered(answers, averaging) if deal else answers


def _aggregated(phase: Phase, state: State, roster: Roster, answers: Answers) -> State:
    """A run's state after the server has drawn its conclusion."""
    server, clients = phase.aggregate(
        state.server,
        trees.concatenate(answers.kept),
        trees.concatenate(answers.uploads),
        torch.cat(answers.n),
    )
    return State(server, state.client_states.put(roster.clients, trees.to(clients, HOST)))


def _together(rosters: Sequence[Roster]) -> Schedules:
    """The batches of the participants of all runs, in each pass of a phase."""
    by_pass = zip(*(roster.schedules for roster in rosters), strict=True)
    return tuple(together([s for s in runs if s]) if all(runs) else None for runs in by_pass)


def _groups(
    states: Sequence[State], rosters: Sequence[Roster]
) -> Iterator[tuple[slice, np.ndarray]]:
    """Rows of the participants of all runs that are trained at once, and the run of each row."""
    runs = np.repeat(np.arange(len(rosters)), [len(roster.clients) for roster in rosters])
    each = trees.nbytes(states[0].server) + states[0].client_states.nbytes
    size = max(1, ROOM // (COPIES * each))
    for begin in range(0, len(runs), size):
        rows = slice(begin, min(begin + size, len(runs)))
        yield rows, runs[rows]


def _cohort(
    phase: Phase,
    states: Sequence[State],
    rosters: Sequence[Roster],
    servers: Tree,
    plan: RoundPlan,
    rows: slice,
    runs: np.ndarray,
) -> Cohort:
    """Some participants, on the device, with what the server gives each; no schedule yet."""
    device = plan.arrays.device
    ids = torch.cat([roster.clients for roster in rosters])[rows]
    by_run: list[Tree] = []
    for run in np.unique(runs):
        clients = states[run].some(ids[torch.from_numpy(runs == run)], device)
        if phase.payload:
            # By run, so that a large server is not copied for every client of a stack.
            given = trees.vmap(phase.payload, (None, 0))(states[run].server, clients)
            clients = {**clients, PAYLOAD: given}
        by_run.append(clients)
    several = len(states) > 1
    stack = trees.concatenate(by_run)
    return Cohort(
        clients=stack,
        ids=stack["id"],
        server=trees.take(servers, torch.from_numpy(runs).to(device)) if several else servers,
        several=several,
        schedule=NOTHING,
        arrays=plan.arrays,
        round=plan.round,
        training=plan.training,
        usual=plan.usual,
    )
