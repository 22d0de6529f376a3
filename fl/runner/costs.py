"""Costs of a run: bytes between server and clients, operations of both, stored state.

Costs decide no number of a run; they are measured when a run has finished (`fl.engine.operations`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from fl.api import trees
from fl.api.method import COUNTS, MODALITY, PAYLOAD, Method
from fl.api.trees import Tree
from fl.api.uploads import without_upload_state
from fl.engine.operations import OperationCounter, ShortRound, active_parts, short_round
from fl.engine.simulation import Simulation, Trainable
from fl.engine.state import State
from fl.store.run_record import Costs, UnknownCosts

logger = logging.getLogger(__name__)

UNCOUNTED_KEYS = ("id", COUNTS, MODALITY, PAYLOAD)
"""Keys of a client's tree that are no state: facts that it knows itself, and its payload."""


def measure_or_explain(
    simulation: Trainable, state: State, completed: int | None = None
) -> Costs | UnknownCosts:
    """Measure the costs of a run as `measure`, or return why they cannot be measured."""
    try:
        return measure(simulation, state, completed)
    except Exception as error:  # A method of a plugin; its run is finished nevertheless.
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        logger.warning("costs cannot be measured: %s", reason)
        return UnknownCosts(reason)


def measure(simulation: Trainable, state: State, completed: int | None = None) -> Costs:
    """Measure the costs of a run.

    If clients have different networks, values are means over clients, and bytes are rounded.

    Args:
        simulation: The run.
        state: Any state of the run.
        completed: Number of completed rounds, fewer than planned if the run ended early; None: all.

    Returns:
        The costs.
    """
    runs = simulation.subruns(state)
    client_counts = np.array([len(run.client_data.participants) for run, _ in runs])
    shares = client_counts / client_counts.sum()
    rounds = range(1, (completed or simulation.training.rounds) + 1)
    by_run = [list(_round_costs(run, run_state, rounds)) for run, run_state in runs]
    mean = np.tensordot(shares, np.array(by_run, float), 1)
    stretches = groupby(mean[:, :2].round().astype(int).tolist())
    down, up, flops, _ = (mean.sum(0) / len(rounds)).tolist()
    clients = [run_state.client_states.initial for _, run_state in runs]
    # A client's id and class counts are left out, since the client knows them itself. The server
    # stores a client's payload until it sends it.
    client_bytes, payload_bytes = (
        round(float(shares @ [trees.nbytes(tree) for tree in client_trees]))
        for client_trees in (
            [
                {key: leaf for key, leaf in client.items() if key not in UNCOUNTED_KEYS}
                for client in clients
            ],
            [client.get(PAYLOAD, {}) for client in clients],
        )
    )
    return Costs(
        clients=len(simulation.client_data.participants),
        participants=simulation.usual_participants,
        traffic=[[len(list(group)), *sizes] for sizes, group in stretches],
        bytes_down=down,
        bytes_up=up,
        flops=flops,
        flops_server=sum(
            _server_flops(run.method, run_state.server, rounds) for run, run_state in runs
        ),
        memory_client=round(mean[:, 3].max()),
        state_client=client_bytes,
        state_server=trees.nbytes(without_upload_state(state.server))
        + payload_bytes * state.client_states.count,
    )


def _server_flops(method: Method, server: Tree, rounds: Sequence[int]) -> float:
    """Return the operations of the server's own steps, mean over rounds."""
    total = 0
    for work in method.server_work:
        with OperationCounter() as counter:
            work.step(server)
        total += counter.total * sum(map(work.steps, rounds))
    return total / len(rounds)


def _round_costs(
    simulation: Simulation, state: State, rounds: Sequence[int]
) -> Iterator[tuple[int, int, float, int]]:
    """Yield bytes down and up, operations and memory of each round; equal rounds are run once."""
    simulation = replace(simulation, training=replace(simulation.training, stragglers=0.0))
    measured: dict[tuple[bool | tuple[bool, ...], ...], ShortRound] = {}
    for number in rounds:
        pattern = active_parts(simulation.method, number)
        if pattern not in measured:
            measured[pattern] = short_round(simulation, state, number)
        short = measured[pattern]
        memory = max((work.counts.memory for work in short.work), default=0)
        yield short.down, short.up, sum(work.flops(number) for work in short.work), memory


def largest_step(simulation: Simulation) -> tuple[int, int]:
    """Return the largest numbers of calls and of operations in a client's step of round 1."""
    counts = [work.counts for work in short_round(simulation, simulation.begin(), 1).work]
    calls = max((count.calls for count in counts), default=0)
    return calls, max((count.step for count in counts), default=0)
