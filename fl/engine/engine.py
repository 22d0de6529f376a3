"""The phases of a round: send, train, aggregate.

`run_rounds` runs the phases of a round one after another and aggregates the results. `run_phase`
divides the participants of a phase into stacks that fit into memory. One of `fl.engine.backends`
then trains a stack in a pass, step by step. Several runs of one method can be computed together;
their clients are then trained in one stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import COUNTS, PAYLOAD, Method, Phase, Sweep, WeightedAverage
from fl.api.trees import Tree
from fl.engine.backends import BACKENDS, STACKING_BACKENDS, ClientStack, PassResult, run_sweep
from fl.engine.batches import Schedule, join_schedules
from fl.engine.client_states import ClientStates
from fl.engine.state import (
    HOST,
    UNDIVIDED,
    Arrivals,
    Division,
    PhaseResults,
    PhaseSchedule,
    RoundSchedule,
    Schedules,
    State,
    returned_states,
)

MAX_STACK_BYTES = 2**31
"""Largest size of the trees of clients that are trained at once.

It is a constant, because the grouping of clients decides the last bits of a result.
"""

COPIES = 6
"""Approximate number of copies of a client's and the server's tree while it is trained: its start,
weights, gradients, momentum, the state that it keeps, and its upload.
"""

EMPTY_SCHEDULE = Schedule(
    np.zeros((0, 0, 0), np.int64), np.zeros((0, 0, 0), bool), np.zeros(0, np.int64)
)
"""The schedule of a stack before its first pass."""


def initial_state(
    method: Method, variables: Tree, counts: Tensor, facts: Mapping[str, Tensor] | None = None
) -> State:
    """Return the state before round 1; all clients are equal except for their facts.

    Args:
        method: The method.
        variables: The variables of the network.
        counts: Training samples of every client by class, int64 [clients, classes].
        facts: Further facts of every client, [clients, ...].

    Returns:
        The state; facts of a client are its ``id``, its class counts, and the further ones.
    """
    server, client = returned_states("init", method.init(variables))
    all_facts = {**(facts or {}), "id": torch.arange(len(counts)), COUNTS: counts}
    return State(server, ClientStates.from_initial(trees.to(client, HOST), all_facts, len(counts)))


def run_round(
    method: Method, state: State, schedule: RoundSchedule, backend: str
) -> tuple[State, Tensor]:
    """Run one round of one run; see `run_rounds`.

    Args:
        method: The method.
        state: The state before the round.
        schedule: The schedule of the round.
        backend: Name of the backend.

    Returns:
        The state after the round, and the participants' mean training losses, [m].
    """
    [result] = run_rounds([method], [state], [schedule], backend)
    return result


def run_rounds(
    methods: Sequence[Method],
    states: Sequence[State],
    schedules: Sequence[RoundSchedule],
    backend: str,
    division: Division = UNDIVIDED,
) -> list[tuple[State, Tensor]]:
    """Run one round of several runs that differ only in their seed and their draw.

    Args:
        methods: The method of each run.
        states: The state of each run before the round.
        schedules: The schedule of each run.
        backend: Name of the backend.
        division: How the work is divided.

    Returns:
        For each run the state after the round, and the participants' mean training losses, [m].
    """
    is_asynchronous = any(schedule.arrivals for schedule in schedules)
    if len(states) > 1 and (is_asynchronous or backend not in STACKING_BACKENDS):
        runs = zip(methods, states, schedules, strict=True)
        return [
            run_rounds([method], [state], [schedule], backend, division)[0]
            for method, state, schedule in runs
        ]
    losses: list[Tensor] = []
    for number, phases in enumerate(zip(*(method.phases for method in methods), strict=True)):
        if schedules[0].phases[number] is not None:
            of_phase = [phase for schedule in schedules if (phase := schedule.phases[number])]
            results = run_phase(phases[0], states, of_phase, schedules[0], backend, division)
            states = [
                _aggregate(phase, state, schedule.clients, whole.arrivals, result)
                for phase, state, schedule, whole, result in zip(
                    phases, states, of_phase, schedules, results, strict=True
                )
            ]
            losses = [torch.cat(result.losses) for result in results]
    return list(zip(states, losses, strict=True))


def run_phase(
    phase: Phase,
    states: Sequence[State],
    schedules: Sequence[PhaseSchedule],
    round_schedule: RoundSchedule,
    backend: str,
    division: Division = UNDIVIDED,
) -> list[PhaseResults]:
    """Train the participants of all runs in a phase.

    Args:
        phase: The phase.
        states: The state of each run.
        schedules: The schedule of the phase of each run.
        round_schedule: The schedule of the round of one of the runs; used for values that all runs
            share.
        backend: Name of the backend.
        division: How the work is divided.

    Returns:
        The results of each run's participants.
    """
    own_schedules = division.own_participants(schedules)
    stacks = list(_stack_rows(states, own_schedules))
    is_divided = own_schedules is not schedules or len(stacks) > 1
    arrivals = round_schedule.arrivals
    averaging = is_divided and isinstance(phase.aggregate, WeightedAverage) and not arrivals
    messages = [phase.send(state.server) if phase.send else state.server for state in states]
    servers = trees.stack(messages) if len(states) > 1 else messages[0]
    batches = _join_runs(own_schedules)
    n = round_schedule.weights(torch.cat([schedule.n for schedule in own_schedules]))
    results = [PhaseResults() for _ in states]
    for rows, runs in stacks:
        stack = _client_stack(phase, states, own_schedules, servers, round_schedule, rows, runs)
        no_losses = torch.zeros(len(stack.ids), dtype=torch.float64, device=n.device)
        result = PassResult(stack.clients, {}, no_losses)
        for pass_, schedule in zip(phase.passes, batches, strict=True):
            if schedule is None:
                continue
            stack = replace(stack, clients=result.client_states, schedule=schedule.take(rows))
            if isinstance(pass_, Sweep):
                swept = run_sweep(pass_, stack, result.uploads, backend)
                result = PassResult(*swept, result.losses)
            else:
                result = BACKENDS[backend](pass_, stack)
        client_states = {
            key: tree
            for key, tree in result.client_states.items()
            if key != PAYLOAD or not phase.payload
        }
        for run in np.unique(runs):
            # A slice copies nothing if the whole stack belongs to one run.
            run_rows = torch.from_numpy(np.flatnonzero(runs == run)).to(n.device)
            selection = slice(None) if len(run_rows) == len(runs) else run_rows
            results[run].add(
                trees.take(client_states, selection),
                trees.take(result.uploads, selection),
                n[rows][selection],
                result.losses[selection],
                averaging,
            )
    return division.join_results(schedules, results, averaging)


def _aggregate(
    phase: Phase, state: State, clients: Tensor, arrivals: Arrivals | None, results: PhaseResults
) -> State:
    """Return a run's state after the server has aggregated the uploads of these clients."""
    uploads, n = trees.concatenate(results.uploads), torch.cat(results.n)
    if arrivals:
        state, uploads = arrivals.rebase(state, uploads, n)
    returned = phase.aggregate(state.server, trees.concatenate(results.client_states), uploads, n)
    server, client_states = returned_states("aggregate", returned)
    client_states = state.client_states.replace_clients(clients, trees.to(client_states, HOST))
    return replace(state, server=server, clients=client_states)


def _join_runs(schedules: Sequence[PhaseSchedule]) -> Schedules:
    """Join the batches of the participants of all runs, for each pass of a phase."""
    by_pass = zip(*(schedule.schedules for schedule in schedules), strict=True)
    return tuple(join_schedules([s for s in runs if s]) if all(runs) else None for runs in by_pass)


def _stack_rows(
    states: Sequence[State], schedules: Sequence[PhaseSchedule]
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield the rows of each stack among the participants of all runs, and the run of each row."""
    runs = np.repeat(np.arange(len(schedules)), [len(schedule.clients) for schedule in schedules])
    client_bytes = trees.nbytes(states[0].server) + states[0].client_states.nbytes
    size = max(1, MAX_STACK_BYTES // (COPIES * client_bytes))
    for begin in range(0, len(runs), size):
        rows = slice(begin, min(begin + size, len(runs)))
        yield rows, runs[rows]


def _client_stack(
    phase: Phase,
    states: Sequence[State],
    schedules: Sequence[PhaseSchedule],
    servers: Tree,
    round_schedule: RoundSchedule,
    rows: slice,
    runs: np.ndarray,
) -> ClientStack:
    """Return some participants, on the device, with their payloads and without batches."""
    device = round_schedule.arrays.device
    ids = torch.cat([schedule.clients for schedule in schedules])[rows]
    by_run: list[Tree] = []
    for run in np.unique(runs):
        clients = states[run].stack_clients(ids[torch.from_numpy(runs == run)], device)
        if phase.payload:
            # Each run on its own, so that a large server is not copied for every client of a stack.
            payloads = trees.vmap(phase.payload, (None, 0))(states[run].server, clients)
            clients = {**clients, PAYLOAD: payloads}
        by_run.append(clients)
    server_is_stacked = len(states) > 1 or round_schedule.arrivals is not None
    if round_schedule.arrivals:
        # Of the round's participants, in ascending order, these may be some.
        own = torch.searchsorted(round_schedule.clients, ids.cpu())
        servers = trees.take(round_schedule.arrivals.sent, own)
    elif server_is_stacked:
        servers = trees.take(servers, torch.from_numpy(runs).to(device))
    stack = trees.concatenate(by_run)
    return ClientStack(
        clients=stack,
        ids=stack["id"],
        server=servers,
        server_is_stacked=server_is_stacked,
        schedule=EMPTY_SCHEDULE,
        arrays=round_schedule.arrays,
        round=round_schedule.round,
        training=round_schedule.training,
        steps_by_participant=round_schedule.steps_by_participant,
    )
