"""The processes that train the runs of a bundle together: one leads, the others do as told.

The first process has the state of every run, the store and the logs; it is what a job of one
process is. In every exchange of a round it sends each of the others the server's tree and the trees
and batches of some participants, trains a share itself, and gets back what clients keep and send.
For evaluation it sends clients to be scored. So checkpoints do not know how many processes there
were, and whoever asks the job to leave asks the first one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pandas as pd
import torch
import torch.distributed as dist

from fl.errors import FedloomError
from fl.pytorch.memory import exhausted
from fl.simulation.processes import split
from fl.simulation.simulate import Simulation
from fl.simulation.state import Plan, State
from fl.train import memory, messages, scoring, shares

logger = logging.getLogger(__name__)

Found = TypeVar("Found")
Simulations = Mapping[str, Simulation]
BEGIN, TRAIN, SCORE = "begin", "train", "score"
"""What the others are asked for."""


class Team:
    """All processes of a job, as the first one leads them.

    What is said between them has a fixed order. If the first process fails within it, the others
    wait for something else, and there is no team any more.
    """

    def __init__(self) -> None:
        self.size = dist.get_world_size()
        self._others = range(1, self.size)
        self._talking = False

    def begin(self, asked: Mapping[str, Any], devices: Sequence[torch.device]) -> None:
        """The others make simulations as ``asked``; device: what each process computes on."""
        self._devices = devices
        if devices[0].type == "cuda":  # Where NCCL meets the others.
            torch.cuda.set_device(devices[0])
        orders = [{"do": BEGIN, "asked": asked, "device": str(device)} for device in devices]
        self._together(orders, {}, lambda: None)

    def joined(self, run: str, simulation: Simulation) -> Simulation:
        """A simulation whose work is shared with the others, which have it under the same name."""
        people, training = simulation.held.participants, simulation.training
        there = max(1, round(training.participation * len(people)))
        if there < self.size:
            raise FedloomError(
                f"config/config.yaml: execution.processes: is {self.size}, but {there} clients "
                f"take part in a round; allowed: 1 to {there}"
            )
        modals = tuple(
            replace(one, group=_Led(self, run, number))
            for number, one in enumerate(simulation.modals)
        )
        return replace(simulation, group=_Led(self, run, None), modals=modals)

    def close(self) -> None:
        """The others end; those that wait for something else end with this process."""
        if not self._talking:
            for rank in self._others:
                messages.send(None, rank)

    def ask(
        self,
        orders: Sequence[dict[str, Any]],
        servers: Any,
        own: Callable[[], Found],
        answer: Callable[[Found], Any],
    ) -> list[Any]:
        """What each process answers, this one first.

        Args:
            orders: By process, what to do; that of this one stands for nothing.
            servers: Trees that all of them need.
            own: What this one does.
            answer: What it answers; all processes may take part.
        """
        found = self._together(orders, servers, own)
        self._talking = True
        mine = answer(found)
        given = [mine, *(messages.receive(rank) for rank in self._others)]
        self._talking = False
        return given

    def _together(
        self, orders: Sequence[dict[str, Any]], servers: Any, own: Callable[[], Found]
    ) -> Found:
        """What this process finds while the others do as told; all have got it right, or it is an
        error and nobody answers.
        """
        if self._talking:
            raise messages.Lost("the processes of this job were lost to each other before")
        self._talking = True
        shape = messages.announced(servers)
        for rank in self._others:
            messages.send({**orders[rank], "servers": shape}, rank)
        messages.broadcast(servers, self._devices[0])
        failed: Exception | None = None
        try:
            found = own()
        except Exception as error:
            failed = error
        told = [messages.receive(rank) for rank in self._others]
        well = failed is None and not any(told)
        for rank in self._others:
            messages.send(well, rank)
        self._talking = False
        if failed is not None:
            raise failed
        if not well:
            raise FedloomError(next(filter(None, told)))
        return found


@dataclass(frozen=True)
class _Led:
    """The team, for one run or for one modality of it: a `fl.simulation.processes.Group`."""

    team: Team
    run: str
    modal: int | None

    def trained(
        self, exchange: Any, states: Any, plans: Any, number: int, backend: str
    ) -> list[Any]:
        """`fl.simulation.engine.trained`, by all processes."""
        dealt = shares.deal(exchange, states, plans, number, self.team.size)
        order = {
            **{"do": TRAIN, "run": self.run, "modal": self.modal, "number": number},
            **{"backend": backend, "totals": dealt.totals},
        }
        orders = [{**order, "parts": parts} for parts in dealt.parts]
        servers = [dict(state.server) for state in states]

        def own() -> list[Any]:
            return shares.train(exchange, dealt.parts[0], servers, plans[0].arrays, number, backend)

        def answer(found: list[Any]) -> list[dict[str, Any]]:
            return shares.answer(found, dealt.parts[0], dealt.totals)

        return shares.merged(dealt, self.team.ask(orders, servers, own, answer), plans)

    def evaluated(self, simulation: Simulation, state: State, round_: int) -> pd.DataFrame:
        """`Simulation.evaluate`, by all processes."""
        dealt = split(scoring.samples(simulation), self.team.size)
        orders = [
            {
                **{"do": SCORE, "run": self.run, "round": round_, "own": own.tolist()},
                "clients": scoring.rows(simulation, state, own),
            }
            for own in dealt
        ]

        def own() -> pd.DataFrame:
            clients = scoring.rows(simulation, state, dealt[0])
            return scoring.score(simulation, dealt[0].tolist(), state.server, clients, round_)

        found = self.team.ask(orders, dict(state.server), own, scoring.columns)
        return scoring.in_order(simulation, [scoring.received(one) for one in found])

    def share(self, plan: Plan) -> Plan:
        """The plan of what this process trains itself, with nobody else."""
        number = len(plan.before)
        own = split(shares.steps(plan, number), self.team.size)[0]
        return alone(plan.take(own.tolist()))


def alone(plan: Plan) -> Plan:
    """The plan without the group."""
    modals = tuple(own and alone(own) for own in plan.modals)
    return replace(plan, group=None, modals=modals)


class Member:
    """One of the other processes.

    Args:
        make: The simulations of some runs by name, as `Team.begin` asks for them, on a device.
    """

    def __init__(self, make: Callable[[Mapping[str, Any], torch.device], Simulations]) -> None:
        self._make, self._device = make, messages.HOST
        self._simulations: Simulations = {}

    def serve(self) -> None:
        """Do what the first process asks, until it asks for nothing more."""
        while (order := messages.receive(0)) is not None:
            if order["do"] == BEGIN:
                self._device = torch.device(order["device"])
            servers = messages.heard(order["servers"], self._device)
            told, answer = "", None
            try:
                answer = self._done(order, servers)
            except Exception as error:
                told = self._told(error)
            messages.send(told, 0)
            if messages.receive(0) and answer is not None:
                messages.send(answer(), 0)

    def _done(self, order: dict[str, Any], servers: Any) -> Callable[[], Any] | None:
        """Do it; what makes the answer, in which all processes may take part."""
        if order["do"] == BEGIN:
            self._simulations = self._make(order["asked"], self._device)
            return None
        simulation = self._simulations[order["run"]]
        if order["do"] == SCORE:
            own, clients = order["own"], order["clients"]
            rows = scoring.score(simulation, own, servers, clients, order["round"])
            return lambda: scoring.columns(rows)
        method, arrays, modal = simulation.method, simulation.arrays, order["modal"]
        if modal is not None:
            method, arrays = method.modals[modal].method, simulation.modals[modal].arrays
        number, parts = order["number"], order["parts"]
        exchange = method.exchanges[number]
        found = shares.train(exchange, parts, servers, arrays, number, order["backend"])
        return lambda: shares.answer(found, parts, order["totals"])

    @staticmethod
    def _told(error: Exception) -> str:
        """An error as the first process is told of it."""
        if exhausted(error):
            return memory.told(error)
        if isinstance(error, FedloomError):
            return str(error)
        logger.exception("process %d failed:", dist.get_rank())
        return f"{type(error).__name__}: {error}"
