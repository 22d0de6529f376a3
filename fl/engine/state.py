"""What a run carries from round to round, and who does what in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import Phase
from fl.api.trees import Tree
from fl.engine.arrays import Arrays
from fl.engine.batches import Schedule
from fl.engine.clients import Clients
from fl.engine.processes import Group


@dataclass(frozen=True)
class State:
    """What a run carries from round to round: the server's tree on the device, and in host memory
    all clients.

    clients: to be read as a stacked tree; it may be given as one.
    """

    server: Tree
    clients: Tree

    def __post_init__(self) -> None:
        if not isinstance(self.clients, Clients):
            object.__setattr__(self, "clients", Clients.of(self.clients))

    @property
    def home(self) -> Clients:
        """The clients, not as a stack."""
        assert isinstance(self.clients, Clients)
        return self.clients

    def client(self, number: int, device: torch.device) -> Tree:
        """One client's tree, on the device."""
        return trees.to(self.home.one(number), device)

    def some(self, numbers: Sequence[int] | Tensor, device: torch.device) -> Tree:
        """A stack of some clients, on the device."""
        return trees.to(self.home.take(numbers), device)


Schedules = tuple[Schedule | None, ...]
"""The batches of the passes of a phase; None for a pass that is left out of the round."""


@dataclass(frozen=True)
class Plan:
    """One round: who takes part, on which batches, at which learning rate.

    clients: ids of the participants, int64 [m], in host memory; n: their numbers of training
    samples, [m]; schedules: their batches in each pass, rows in the same order; before: those of
    the phases before, None where one is not due. modals: where clients differ in modality, the
    plan of each one's participants, None where there are none; the schedules are theirs alone.
    group: the processes that share the work; None: this one does all of it. usual: local steps in a
    round of everybody who can take part, by their settings, int64; None: not known.
    """

    round: int
    clients: Tensor
    n: Tensor
    schedules: Schedules
    arrays: Arrays
    lr: float
    before: tuple[Schedules | None, ...] = ()
    modals: tuple[Plan | None, ...] = ()
    everyone: tuple[Tensor, Tensor] | None = None
    group: Group | None = None
    usual: np.ndarray | None = None

    def of(self, phase: Phase) -> Plan:
        """The plan with those who take part in one of its phases."""
        if not phase.everyone or self.everyone is None:
            return self
        clients, n = self.everyone
        return replace(self, clients=clients, n=n)

    @property
    def phases(self) -> tuple[Schedules | None, ...]:
        """The batches of all phases, in the order of `Method.phases`."""
        return (*self.before, self.schedules)

    def take(self, rows: Sequence[int]) -> Plan:
        """The plan with some of its participants only, in that order."""
        chosen, index = np.array(rows), torch.tensor(rows)
        places = chosen
        if self.everyone:  # Who is not among the chosen does not come where everyone is asked.
            places = np.searchsorted(self.everyone[0].numpy(), self.clients[index].numpy())

        def of(schedule: Schedule) -> Schedule:
            asked = self.everyone and len(schedule.steps) == len(self.everyone[0])
            return schedule.take(places if asked else chosen)

        def some(schedules: Schedules | None) -> Schedules | None:
            return schedules and tuple(s and of(s) for s in schedules)

        return replace(
            self,
            clients=self.clients[index],
            n=self.n[index.to(self.n.device)],
            schedules=some(self.schedules) or (),
            before=tuple(map(some, self.before)),
            everyone=None,
            modals=tuple(own and own.among(self.clients[index].tolist()) for own in self.modals),
        )

    def among(self, clients: Sequence[int]) -> Plan | None:
        """The plan of those of some clients that take part, in their order."""
        own = self.clients.tolist()
        rows = [own.index(client) for client in clients if client in own]
        return self.take(rows) if rows else None
