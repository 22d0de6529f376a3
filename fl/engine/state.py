"""The state of a run between rounds, the schedule of a round, and the results of a phase."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import VARIABLE_GROUPS
from fl.api.training import Training
from fl.api.trees import Tree
from fl.base.errors import FedloomError
from fl.base.units import object_text
from fl.engine.batches import Schedule
from fl.engine.client_data import ClientData
from fl.engine.client_states import ClientStates
from fl.engine.sample_arrays import Arrays


def returned_states(function: str, result: Any) -> tuple[Tree, Tree]:
    """Return the states of the server and of clients that a function of a method returned.

    Args:
        function: ``init`` or ``aggregate``.
        result: What it returned.

    Raises:
        FedloomError: If these are not two trees of tensors.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        problem = f"`{function}` of the method returns {object_text(result)}"
        advice = "write `return server, client`, with both states"
        raise FedloomError(problem, "the states of the server and of clients", advice)
    for name, tree in zip(("server", "client"), result, strict=True):
        _check_tensors(function, tree, name)
    return result


def _check_tensors(function: str, tree: Any, path: str) -> None:
    """Refuse a tree that contains something else than tensors."""
    if isinstance(tree, Mapping):
        for key, child in tree.items():
            _check_tensors(function, child, f"{path}/{key}")
    elif not isinstance(tree, Tensor):
        problem = f"`{function}` of the method returns {object_text(tree)} as {path}"
        raise FedloomError(problem, "tensors, in dictionaries", "torch.tensor(...) for a number")


def check_server(before: Tree, after: Tree, function: str, path: str = "server") -> None:
    """Refuse a server whose tensors are not of the names, shapes and types that they were of.

    Further tensors beside the model's are allowed.

    Args:
        before: The state of the server before a function of the method.
        after: The state after it.
        function: The name of the function.
        path: The place in the state.

    Raises:
        FedloomError: For the first tensor that is missing, unknown or differs.
    """
    is_of_model = path.rpartition("/")[2] in VARIABLE_GROUPS
    known = {**dict.fromkeys(after if is_of_model else ()), **before}
    for key, first in known.items():
        second = after.get(key)
        if isinstance(first, Mapping) and isinstance(second, Mapping):
            check_server(first, second, function, f"{path}/{key}")
        elif not _are_alike(first, second):
            problem = f"`{function}` of the method returns {path}/{key} as {_leaf_text(second)}; "
            problem += f"it was {_leaf_text(first)}"
            advice = "return the tensors of before, with their shapes and types"
            raise FedloomError(problem, advice=advice)


def _are_alike(first: object, second: object) -> bool:
    """Whether both are tensors of one shape and type."""
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return False
    return first.shape == second.shape and first.dtype == second.dtype


def _leaf_text(value: object) -> str:
    """Return a tensor as text, ``float32 [200, 6]``, and nothing or a dictionary in words."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {[*value.shape]}"
    return "nothing" if value is None else "a dictionary"


HOST = torch.device("cpu")


@dataclass(frozen=True)
class State:
    """The state of a run between rounds.

    Attributes:
        server: The server's tree, on the device.
        clients: The trees of all clients, stacked, in host memory. A plain stacked tree is
            converted to `ClientStates`.
        participation: What decides who takes part next (`fl.engine.participation`), if more than
            the seed does.
    """

    server: Tree
    clients: Tree
    participation: Tree = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.clients, ClientStates):
            object.__setattr__(self, "clients", ClientStates.from_stack(self.clients))

    @property
    def client_states(self) -> ClientStates:
        """The clients as `ClientStates`."""
        assert isinstance(self.clients, ClientStates)
        return self.clients

    def client(self, number: int, device: torch.device) -> Tree:
        """Return one client's tree, on the device."""
        return trees.to(self.client_states.client(number), device)

    def stack_clients(self, numbers: Sequence[int] | Tensor, device: torch.device) -> Tree:
        """Return a stack of some clients, on the device."""
        return trees.to(self.client_states.take(numbers), device)


Schedules = tuple[Schedule | None, ...]
"""The batches of the passes of a phase; None for a pass that is left out of the round."""


@dataclass(frozen=True)
class PhaseSchedule:
    """The schedule of a phase: its participants and their batches.

    Attributes:
        clients: Their ids, int64 [m], in host memory.
        n: Their numbers of training samples, [m].
        schedules: Their batches in each pass, with rows in the same order.
    """

    clients: Tensor
    n: Tensor
    schedules: Schedules = ()

    def take(self, rows: np.ndarray) -> PhaseSchedule:
        """Return the schedule of some participants, in the given order."""
        index = torch.from_numpy(rows)
        schedules = tuple(schedule and schedule.take(rows) for schedule in self.schedules)
        return PhaseSchedule(self.clients[index], self.n[index.to(self.n.device)], schedules)

    def steps(self) -> np.ndarray:
        """Return the number of steps of each participant, [m]."""
        steps = np.zeros(len(self.clients), np.int64)
        for schedule in self.schedules:
            steps += 0 if schedule is None else schedule.steps
        return steps


@dataclass(frozen=True)
class RoundTimes:
    """The simulated time of a round.

    Attributes:
        begin: Seconds since the begin of training at which the server selects clients.
        end: Seconds at which it has its next model.
        busy: Seconds for which each participant worked, [m].
        lost: Seconds of all clients whose work the server does not use.
        dropped: Number of these clients.
        bytes_down: Bytes that the server has sent for the round.
        bytes_up: Bytes that it has received.
        is_waiting: Whether participants whose work is done wait for the end of the round.
    """

    begin: float
    end: float
    busy: np.ndarray
    lost: float
    dropped: int
    bytes_down: float
    bytes_up: float
    is_waiting: bool = True

    def values(self) -> dict[str, float]:
        """Return what tables keep of a round, by metric (`fl.base.schema.CLOCK_METRICS`)."""
        worked, length = float(self.busy.sum()), self.end - self.begin
        idle = 1 - worked / (length * len(self.busy)) if length else 0.0
        return {
            "seconds": self.end,
            "slowest": float(self.busy.max(initial=0.0)),
            **({"idle": idle} if self.is_waiting else {}),
            "lost": self.lost / (self.lost + worked) if self.lost else 0.0,
            "dropped": float(self.dropped),
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
        }


@dataclass(frozen=True)
class Arrivals:
    """Uploads that reach an asynchronous server, each from the version that its client was sent.

    Attributes:
        sent: What each participant was sent, stacked, [m, ...].
        rebase: Function from the state, the stacked uploads and their weights to the state and the
            uploads as they would be if all had been sent the newest version.
    """

    sent: Tree
    rebase: Callable[[State, Tree, Tensor], tuple[State, Tree]]


@dataclass(frozen=True)
class RoundSchedule:
    """The schedule of a round: its participants, their batches, and settings of training.

    Attributes:
        round: Number of the round.
        phases: By phase, in the order of `Method.phases`; None for a phase that the round leaves
            out. The last one has the round's participants.
        arrays: The samples, of which those of several draws are one whole (`Arrays.whole`).
        training: Settings of training.
        steps_by_participant: Local steps in a round of every possible participant by its settings,
            int64; None if unknown.
        times: The simulated time of the round; None without devices.
        arrivals: The uploads that reach an asynchronous server; None: all participants were sent
            the newest version.
        memory: What the selection of clients remembers after this round's selection.
    """

    round: int
    phases: tuple[PhaseSchedule | None, ...]
    arrays: Arrays
    training: Training
    steps_by_participant: np.ndarray | None = None
    times: RoundTimes | None = None
    arrivals: Arrivals | None = None
    memory: Tree = field(default_factory=dict)

    def weights(self, n: Tensor) -> Tensor:
        """Return the weights of participants in means, from their numbers of training samples."""
        return (n > 0).to(n) if self.training.weighting == "uniform" else n

    @property
    def last_phase(self) -> PhaseSchedule:
        """The schedule of the last phase, which every round has."""
        assert self.phases[-1] is not None
        return self.phases[-1]

    @property
    def clients(self) -> Tensor:
        """The ids of the participants, int64 [m], in host memory."""
        return self.last_phase.clients

    @property
    def n(self) -> Tensor:
        """Numbers of training samples of the participants, [m]."""
        return self.last_phase.n

    @property
    def schedules(self) -> Schedules:
        """Batches of the participants in each pass of the last phase."""
        return self.last_phase.schedules

    def with_schedules(self, schedules: Iterable[Schedule | None]) -> RoundSchedule:
        """Return the schedule with other batches in the last phase."""
        last = replace(self.last_phase, schedules=tuple(schedules))
        return replace(self, phases=(*self.phases[:-1], last))


@dataclass(frozen=True)
class PhaseResults:
    """The results of one run's participants in a phase, a tree for each stack.

    Attributes:
        client_states: Trees that stay with the clients.
        uploads: Trees that the clients send.
        n: Weight of each upload in means, which the method's aggregate receives.
        losses: Mean training loss of each participant.
    """

    client_states: list[Tree] = field(default_factory=list)
    uploads: list[Tree] = field(default_factory=list)
    n: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)

    def add(
        self, client_states: Tree, uploads: Tree, n: Tensor, losses: Tensor, averaging: bool
    ) -> None:
        """Add a stack.

        Args:
            client_states: Trees that stay with its clients, stacked.
            uploads: Trees that its clients send, stacked.
            n: Weights of the uploads, [m].
            losses: Mean training losses, [m].
            averaging: Whether to average the uploads with earlier ones at once, and to move
                ``client_states`` to host memory.
        """
        if averaging:
            uploads, n = average_groups([*self.uploads, uploads], [*self.n, n])
            self.uploads.clear()
            self.n.clear()
            client_states = trees.to(client_states, HOST)
        self.client_states.append(client_states)
        self.uploads.append(uploads)
        self.n.append(n)
        self.losses.append(losses)


class Division:
    """A way to divide work; this one does not, so that one process does all of it.

    `fl.engine.processes` has another one.
    """

    def own_participants(self, schedules: Sequence[PhaseSchedule]) -> Sequence[PhaseSchedule]:
        """Return for each run the participants that this process trains."""
        return schedules

    def join_results(
        self, schedules: Sequence[PhaseSchedule], results: list[PhaseResults], averaging: bool
    ) -> list[PhaseResults]:
        """Join what `own_participants` gave with the results of all others.

        Args:
            schedules: The schedule of the phase of each run, with all participants.
            results: By run, the results of this process.
            averaging: Whether uploads are averaged, so that their order has no meaning.

        Returns:
            By run, the results of all participants.
        """
        return results

    def own_clients(self, data: ClientData) -> ClientData:
        """Return the samples of the clients that this process scores."""
        return data

    def join_metrics(self, rows: pd.DataFrame, stages: Sequence[str]) -> pd.DataFrame:
        """Join the metrics of `own_clients` with those of all others.

        Args:
            rows: Metrics of one round.
            stages: The stages, in their order.
        """
        return rows


UNDIVIDED = Division()


def average_groups(groups: Sequence[Tree], weights: Sequence[Tensor]) -> tuple[Tree, Tensor]:
    """Average stacks of uploads.

    Args:
        groups: Stacks of uploads.
        weights: Weights of the uploads of each stack, [m] each.

    Returns:
        A stack with one row, the weighted mean of all uploads, and the sum of the weights, [1].
    """
    sums = torch.stack([weight.sum() for weight in weights])
    # If all weights of a group are 0, its plain mean is taken, with weight 0.
    weights = [torch.where(total > 0, w, 1.0) for total, w in zip(sums, weights, strict=True)]
    group_means = [trees.mean(group, weight) for group, weight in zip(groups, weights, strict=True)]
    return trees.stack([trees.mean(trees.stack(group_means), sums)]), sums.sum(0, keepdim=True)
