"""The processes that train the runs of a bundle together: one leads, the others do as told.

The first process has the state of every run, the store and the logs; it is what a job of one
process is. In every phase of a round it sends each of the others the server's tree and the trees
and batches of some participants, trains a share itself, and gets back what clients keep and send.
For evaluation it sends clients to be scored. So checkpoints do not know how many processes there
were, and whoever asks the job to leave asks the first one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist

from fl.api.trees import Tree
from fl.base import faults
from fl.base.errors import FedloomError
from fl.engine.midway import INNER, Midway, listed
from fl.engine.processes import COUNT, split
from fl.engine.simulate import Simulation
from fl.engine.state import Plan, State
from fl.pytorch.memory import exhausted
from fl.train import memory, messages, scoring, shares
from fl.train.calls import Calls, waited
from fl.train.shares import Done

logger = logging.getLogger(__name__)

Simulations = Mapping[str, Simulation]
BEGIN, TRAIN, SCORE = "begin", "train", "score"
"""What the others are asked for."""
ANSWER, KEEP = "answer", "keep"
"""What all processes do when everyone has done as told: give what came of it, or, where one has
left its share, what they go on from.
"""


class Team:
    """All processes of a job, as the first one leads them.

    What is said between them has a fixed order. If the first process fails within it, the others
    wait for something else, and there is no team any more.
    """

    def __init__(self) -> None:
        self.size = dist.get_world_size()
        self._others = range(1, self.size)
        self._talking = False
        self._calls, self._number = Calls(), 0

    def begin(self, asked: Mapping[str, Any], devices: Sequence[torch.device]) -> None:
        """The others make simulations as ``asked``; device: what each process computes on."""
        self._devices = devices
        if devices[0].type == "cuda":  # Where NCCL meets the others.
            torch.cuda.set_device(devices[0])
        orders = [{"do": BEGIN, "asked": asked, "device": str(device)} for device in devices]
        self._together(orders, {}, Done, None)

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
        own: Callable[[], Done],
        due: Callable[[], bool] | None = None,
    ) -> tuple[str, list[Any]]:
        """What each process gives, this one first: `ANSWER`s, or trees to `KEEP`.

        Args:
            orders: By process, what to do; that of this one stands for nothing.
            servers: Trees that all of them need.
            own: What this one does.
            due: Whether all are to leave what they do; see `call`.
        """
        mine, word = self._together(orders, servers, own, due)
        self._talking = True
        given = [mine.answer() if word == ANSWER and mine.answer else mine.tree()]
        for rank in self._others:
            told = messages.receive(rank)
            given.append(messages.unfolded(told) if word == KEEP else told)
        self._talking = False
        return word, given

    def call(self) -> None:
        """Tell the others at work to leave it after the step."""
        self._calls.call(self._number)

    def _together(
        self,
        orders: Sequence[dict[str, Any]],
        servers: Any,
        own: Callable[[], Done],
        due: Callable[[], bool] | None,
    ) -> tuple[Done, str]:
        """What this process does while the others do as told, and what all give after it; all have
        got it right, or it is an error and nobody gives anything.
        """
        if self._talking:
            raise messages.Lost("the processes of this job were lost to each other before")
        self._talking = True
        shape = messages.announced(servers)
        self._number += 1
        for rank in self._others:
            messages.send({**orders[rank], "servers": shape, "call": self._number}, rank)
        messages.broadcast(servers, self._devices[0])
        failed, mine = None, Done()
        try:
            mine = own()
        except Exception as error:
            failed = error
        told = waited(lambda: [messages.receive(rank) for rank in self._others], due, self.call)
        errors = [error for error, _ in told if error]
        left = mine.left or any(left for _, left in told)
        word = "" if failed or errors else KEEP if left else ANSWER
        for rank in self._others:
            messages.send(word, rank)
        self._talking = False
        if failed is not None:
            raise failed
        if errors:
            raise FedloomError(errors[0])
        return mine, word


@dataclass(frozen=True)
class _Led:
    """The team, for one run or for one modality of it: a `fl.engine.processes.Group`."""

    team: Team
    run: str
    modal: int | None

    @property
    def size(self) -> int:
        """How many processes there are."""
        return self.team.size

    def trained(
        self, phase: Any, states: Any, plans: Any, number: int, backend: str, midway: Midway
    ) -> list[Any]:
        """`fl.engine.engine.trained`, by all processes.

        What each of them has done is kept as a level of ``midway`` that has this process's level
        within it, and beside that those of the others.
        """
        dealt = shares.deal(phase, states, plans, number, self.size)
        order = {
            **{"do": TRAIN, "run": self.run, "modal": self.modal, "number": number},
            **{"backend": backend, "totals": dealt.totals},
        }
        servers = [dict(state.server) for state in states]
        kept: Sequence[Tree] = [{}] * self.size
        if midway.begun:
            kept = [midway.begun[INNER], *midway.begun["others"].values()]

        def due() -> bool:
            if found := midway.due():
                self.team.call()
            return found

        while True:
            mine = {**order, "parts": dealt.parts[0], "begun": kept[0]}
            orders = [
                {**order, "parts": parts, "begun": messages.folded(begun)}
                for parts, begun in zip(dealt.parts, kept, strict=True)
            ]
            own = partial(shares.train, phase, mine, servers, plans[0].arrays, due)
            word, given = self.team.ask(orders, servers, own, midway.due)
            if word == ANSWER:
                return shares.merged(dealt, given, plans)
            kept = given
            midway.keep(
                {COUNT: torch.tensor([self.size]), "others": listed(kept[1:]), INNER: kept[0]}
            )

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

        def own() -> Done:
            clients = scoring.rows(simulation, state, dealt[0])
            rows = scoring.score(simulation, dealt[0].tolist(), state.server, clients, round_)
            return Done(partial(scoring.columns, rows))

        _, found = self.team.ask(orders, dict(state.server), own)
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
        self._calls = Calls()

    def serve(self) -> None:
        """Do what the first process asks, until it asks for nothing more."""
        while (order := messages.receive(0)) is not None:
            if order["do"] == BEGIN:
                self._device = torch.device(order["device"])
            servers = messages.heard(order["servers"], self._device)
            told, done = "", Done()
            try:
                done = self._done(order, servers)
            except Exception as error:
                told = self._told(error)
            messages.send([told, done.left], 0)
            word = messages.receive(0)
            if word == KEEP:
                messages.send(messages.folded(done.tree()), 0)
            elif word and done.answer:
                messages.send(done.answer(), 0)

    def _done(self, order: dict[str, Any], servers: Any) -> Done:
        """Do as told."""
        if order["do"] == BEGIN:
            self._simulations = self._make(order["asked"], self._device)
            return Done()
        simulation = self._simulations[order["run"]]
        if order["do"] == SCORE:
            own, clients = order["own"], order["clients"]
            rows = scoring.score(simulation, own, servers, clients, order["round"])
            return Done(partial(scoring.columns, rows))
        method, arrays, modal = simulation.method, simulation.arrays, order["modal"]
        if modal is not None:
            method, arrays = method.modals[modal].method, simulation.modals[modal].arrays
        phase = method.phases[order["number"]]
        order["begun"] = messages.unfolded(order["begun"])
        return shares.train(phase, order, servers, arrays, self._calls.heard(order["call"]))

    @staticmethod
    def _told(error: Exception) -> str:
        """An error as the first process is told of it."""
        if exhausted(error):
            return memory.told(error)
        if isinstance(error, FedloomError):
            return str(error)
        logger.exception("process %d failed:", dist.get_rank())
        return faults.told(error)
