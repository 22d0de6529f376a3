"""What a run costs: bytes between server and clients, operations of both, and kept state.

Bytes are exactly those of the trees that are sent and received, without protocol; where uploads
cross a wire that compresses them (`fl.api.uploads`), those of its messages.
Operations are those of matrix products and convolutions, forward and backward, as PyTorch counts
them. Nothing here decides a number of a run; costs are measured when a run is finished.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from fl.api import trees
from fl.api.method import COUNTS, MODALITY, PAYLOAD, Method
from fl.api.trees import Tree
from fl.api.uploads import without_upload_state
from fl.engine.modality_rounds import modality_state
from fl.engine.simulation import Simulation
from fl.engine.state import State
from fl.pytorch.operations import OperationCounter
from fl.runner.counting import ShortRound, short_round, steps_stated

logger = logging.getLogger(__name__)

KNOWN = ("id", COUNTS, MODALITY, PAYLOAD)
"""What a client has of itself, or is only lent."""


@dataclass(frozen=True)
class Costs:
    """The costs of a run as planned, per participant and round where not said otherwise.

    Stragglers count as if they did all their work.

    Attributes:
        clients: Those that may take part.
        participants: Clients that take part in a round.
        traffic: ``[rounds, down, up]`` for each stretch of equal rounds, in order: the bytes that a
            participant receives and sends in each of them.
        bytes_down, bytes_up: Their means over rounds.
        flops: Floating-point operations, mean over clients and rounds. Batches count as whole ones:
            what the last one of an epoch lacks is filled up, and computed.
        flops_server: Those of the steps that the server computes (`fl.api.method.ServerWork`), mean
            over rounds; not of means, nor of what methods do not declare.
        memory_client: Bytes of the weights and states that a client's step reads, at most: what it
            trains, and what it compares or corrects that with. Batches, what layers hand on,
            gradients and the optimizer's state are left out.
        state_client: Bytes that a client keeps between rounds.
        state_server: Bytes that the server keeps, those for each client included.
    """

    clients: int
    participants: int
    traffic: list[list[int]]
    bytes_down: float
    bytes_up: float
    flops: float
    flops_server: float
    memory_client: int
    state_client: int
    state_server: int


def recorded(simulation: Simulation, state: State) -> dict[str, Any]:
    """The costs in ``run.json``, or the reason why they cannot be measured."""
    try:
        return asdict(measure(simulation, state))
    except Exception as error:  # A method of a user's own; its run is finished all the same.
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        logger.warning("costs cannot be told: %s", reason)
        return {"unknown": reason}


def largest_step(simulation: Simulation) -> tuple[int, int]:
    """Calls and floating-point operations in a client's step in round 1, at most."""
    counts = [work.counts for work in short_round(simulation, simulation.begin(), 1).work]
    calls = max((count.calls for count in counts), default=0)
    return calls, max((count.step for count in counts), default=0)


def measure(simulation: Simulation, state: State) -> Costs:
    """The costs of a run. Where clients differ in modality: means, bytes to the nearest whole one.

    Args:
        state: Any state of the run.
    """
    runs = [(simulation, state)]
    if simulation.by_modality:
        states = [modality_state(modal, state) for modal in simulation.method.by_modality]
        runs = list(zip(simulation.by_modality, states, strict=True))
    weights = np.array([len(alone.client_data.participants) for alone, _ in runs])
    shares = weights / weights.sum()
    rounds = range(1, simulation.training.rounds + 1)
    each = [list(_rounds(alone, its, rounds)) for alone, its in runs]
    mean = np.tensordot(shares, np.array(each, float), 1)
    alike = groupby(mean[:, :2].round().astype(int).tolist())
    down, up, flops, _ = (mean.sum(0) / len(rounds)).tolist()
    clients = [its.client_states.initial for _, its in runs]
    # A client's number and class counts are left out: it knows them itself. The server keeps what
    # it made for each client until it sends that.
    kept, payloads = (
        round(float(shares @ [trees.nbytes(tree) for tree in select_clients]))
        for select_clients in (
            [{k: leaf for k, leaf in client.items() if k not in KNOWN} for client in clients],
            [client.get(PAYLOAD, {}) for client in clients],
        )
    )
    return Costs(
        clients=len(simulation.client_data.participants),
        participants=len(simulation.round_schedule(1).clients),
        traffic=[[len(list(same)), *sizes] for sizes, same in alike],
        bytes_down=down,
        bytes_up=up,
        flops=flops,
        flops_server=sum(_of_server(alone.method, its.server, rounds) for alone, its in runs),
        memory_client=round(mean[:, 3].max()),
        state_client=kept,
        state_server=trees.nbytes(without_upload_state(state.server))
        + payloads * state.client_states.count,
    )


def _of_server(method: Method, server: Tree, rounds: Sequence[int]) -> float:
    """Operations of the server's own steps, mean over rounds; one step of each kind is taken."""
    total = 0
    for work in method.server_work:
        with OperationCounter() as counter:
            work.step(server)
        total += counter.total * sum(map(work.steps, rounds))
    return total / len(rounds)


def _rounds(
    simulation: Simulation, state: State, rounds: Sequence[int]
) -> Iterator[tuple[int, int, float, int]]:
    """Bytes down and up, operations and memory of each round; equal rounds are measured once."""
    simulation = replace(simulation, training=replace(simulation.training, stragglers=0.0))
    measured: dict[Any, ShortRound] = {}
    for number in rounds:
        pattern = tuple(
            phase.is_active(number)
            and tuple(steps_stated(pass_, number) > 0 for pass_ in phase.passes)
            for phase in simulation.method.phases
        )
        if pattern not in measured:
            measured[pattern] = short_round(simulation, state, number)
        short = measured[pattern]
        memory = max((work.counts.memory for work in short.work), default=0)
        yield short.down, short.up, sum(work.flops(number) for work in short.work), memory
