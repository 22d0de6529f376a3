"""What a run carries from round to round, who does what in a round, and what they answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fl.api import trees
from fl.api.training import Training
from fl.api.trees import Tree
from fl.engine.arrays import Arrays
from fl.engine.batches import Schedule
from fl.engine.client_states import ClientStates

HOST = torch.device("cpu")


@dataclass(frozen=True)
class State:
    """What a run carries from round to round: the server's tree on the device, and in host memory
    all clients.

    clients: to be read as a stacked tree; it may be given as one.
    """

    server: Tree
    clients: Tree

    def __post_init__(self) -> None:
        if not isinstance(self.clients, ClientStates):
            object.__setattr__(self, "clients", ClientStates.of(self.clients))

    @property
    def client_states(self) -> ClientStates:
        """The clients, not as a stack."""
        assert isinstance(self.clients, ClientStates)
        return self.clients

    def client(self, number: int, device: torch.device) -> Tree:
        """One client's tree, on the device."""
        return trees.to(self.client_states.client(number), device)

    def some(self, numbers: Sequence[int] | Tensor, device: torch.device) -> Tree:
        """A stack of some clients, on the device."""
        return trees.to(self.client_states.take(numbers), device)


Schedules = tuple[Schedule | None, ...]
"""The batches of the passes of a phase; None for a pass that is left out of the round."""


@dataclass(frozen=True)
class Roster:
    """Who takes part in a phase, on which batches.

    clients: their ids, int64 [m], in host memory; n: their numbers of training samples, [m];
    schedules: their batches in each pass, rows in the same order.
    """

    clients: Tensor
    n: Tensor
    schedules: Schedules = ()

    def take(self, rows: np.ndarray) -> Roster:
        """Some of them, in that order."""
        index = torch.from_numpy(rows)
        schedules = tuple(schedule and schedule.take(rows) for schedule in self.schedules)
        return Roster(self.clients[index], self.n[index.to(self.n.device)], schedules)

    def steps(self) -> np.ndarray:
        """How many steps each of them takes, [m]."""
        steps = np.zeros(len(self.clients), np.int64)
        for schedule in self.schedules:
            steps += 0 if schedule is None else schedule.steps
        return steps


class Team(Protocol):
    """The processes that compute a run together.

    Attributes:
        size: How many they are.
        rank: The number of this one.
    """

    size: int
    rank: int

    def exchanged(self, value: Any) -> list[Any]:
        """What each process gives at this point, by rank. All of them call this.

        Raises:
            FedloomError: If one of them has failed.
        """


@dataclass(frozen=True)
class RoundPlan:
    """One round: who takes part, on which batches, and how it is trained.

    rosters: by phase, in the order of `Method.phases`; None for one that is not due. The last
    one has the round's participants. by_modality: where clients differ in modality, the plan of
    each one's participants, None where there are none; they alone have schedules then. team: the
    processes that share the work; None: this one does all of it. usual: local steps in a round of
    everybody who can take part, by their settings, int64; None: not known.
    """

    round: int
    rosters: tuple[Roster | None, ...]
    arrays: Arrays
    training: Training
    by_modality: tuple[RoundPlan | None, ...] = ()
    team: Team | None = None
    usual: np.ndarray | None = None

    def weights(self, n: Tensor) -> Tensor:
        """By numbers of training samples, what participants weigh in means."""
        return (n > 0).to(n) if self.training.weighting == "uniform" else n

    @property
    def last(self) -> Roster:
        """Who takes part in the phase of every round."""
        assert self.rosters[-1] is not None
        return self.rosters[-1]

    @property
    def clients(self) -> Tensor:
        """The ids of the participants, int64 [m], in host memory."""
        return self.last.clients

    @property
    def n(self) -> Tensor:
        """Their numbers of training samples, [m]."""
        return self.last.n

    @property
    def schedules(self) -> Schedules:
        """Their batches in each pass of the last phase."""
        return self.last.schedules

    def with_schedules(self, schedules: Iterable[Schedule | None]) -> RoundPlan:
        """The plan with other batches in the last phase."""
        last = replace(self.last, schedules=tuple(schedules))
        return replace(self, rosters=(*self.rosters[:-1], last))


@dataclass(frozen=True)
class Answers:
    """What the participants of one run keep and send, a stack for each group.

    n: the weight of each upload, which the method is told; losses: the mean training loss of each
    participant.
    """

    kept: list[Tree] = field(default_factory=list)
    uploads: list[Tree] = field(default_factory=list)
    n: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)

    def add(self, kept: Tree, uploads: Tree, n: Tensor, losses: Tensor, averaging: bool) -> None:
        """Add a group.

        averaging: its uploads are averaged with those before at once, and what its clients keep
        goes to host memory.
        """
        if averaging:
            uploads, n = averaged([*self.uploads, uploads], [*self.n, n])
            self.uploads.clear()
            self.n.clear()
            kept = trees.to(kept, HOST)
        self.kept.append(kept)
        self.uploads.append(uploads)
        self.n.append(n)
        self.losses.append(losses)

    def joined(self) -> Tree | None:
        """All groups as one tree; None without any."""
        if not self.kept:
            return None
        return {
            "kept": trees.concatenate(self.kept),
            "uploads": trees.concatenate(self.uploads),
            "n": torch.cat(self.n),
            "losses": torch.cat(self.losses),
        }

    @classmethod
    def merged(
        cls, answers: Sequence[Tree], order: np.ndarray, device: torch.device, averaging: bool
    ) -> Answers:
        """The answers of several processes, each as `joined`, on a device.

        Args:
            order: Of all participants.
            averaging: Whether uploads are means, and what clients keep stays in host memory.
        """
        whole, rows = trees.concatenate(answers), torch.from_numpy(order)
        kept = trees.take(whole["kept"], rows)
        rest = trees.to({key: whole[key] for key in ("uploads", "n", "losses")}, device)
        if not averaging:
            kept = trees.to(kept, device)
            rest |= trees.take({key: rest[key] for key in ("uploads", "n")}, rows)
        losses = trees.rows(rest["losses"], rows)
        return cls([kept], [rest["uploads"]], [rest["n"]], [losses])


def averaged(shares: Sequence[Tree], weights: Sequence[Tensor]) -> tuple[Tree, Tensor]:
    """Stacks of uploads as one row, their weighted mean, and its weight."""
    sums = torch.stack([weight.sum() for weight in weights])
    # Where all weights are 0 there is no mean, and a plain one weighs nothing.
    weights = [torch.where(total > 0, w, 1.0) for total, w in zip(sums, weights, strict=True)]
    means = [trees.mean(share, weight) for share, weight in zip(shares, weights, strict=True)]
    return trees.stack([trees.mean(trees.stack(means), sums)]), sums.sum(0, keepdim=True)
