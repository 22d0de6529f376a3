"""Who takes part in rounds, and when: devices of clients, selection, asynchronous servers.

Time is simulated: it follows from counted operations and bytes of a client's round, and from its
device. No clock of a computer decides a number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl.api.training import Training
from fl.api.trees import Tree
from fl.base.errors import FedloomError

LOSS_BYTES = 4
"""Bytes of a loss that a client sends to the server, for a selection."""


@dataclass(frozen=True)
class Presence:
    """When clients are there; the times of a period repeat for ever.

    Attributes:
        clients: The client of each interval, ascending, int64 [intervals].
        begin: Begin of each interval in seconds, from 0 to ``period``.
        end: End of each interval, a millisecond or more above its begin, at most ``period``.
        period: Seconds after which intervals repeat; or, [intervals], those of each client.
    """

    clients: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    period: float | np.ndarray

    def present(self, seconds: float) -> np.ndarray:
        """Return the clients that are there at a time, in ascending order."""
        clients = self.clients[self._contain(seconds)]
        is_first = np.ones(len(clients), bool)
        is_first[1:] = clients[1:] != clients[:-1]
        present: np.ndarray = clients[is_first]
        return present

    def has(self, client: int, seconds: float) -> bool:
        """Whether a client is there at a time."""
        rows = slice(*np.searchsorted(self.clients, [client, client + 1]))
        return bool(self._contain(seconds, rows).any())

    def leave(self, clients: np.ndarray, seconds: float) -> np.ndarray:
        """Return when clients leave that are there at a time.

        Args:
            clients: Their ids, int64 [m].
            seconds: The time.

        Returns:
            The times, float64 [m], the first at which they are not there; inf: never.
        """
        first, last = (np.searchsorted(self.clients, clients, side) for side in ("left", "right"))
        counts = last - first
        # The intervals of all these clients, and the index of each one's client.
        owner = np.repeat(np.arange(len(clients)), counts)
        own = np.arange(len(owner)) + np.repeat(first - np.cumsum(counts) + counts, counts)
        begin, end = self.begin[own], self.end[own]
        period = np.full(len(clients), np.inf)
        period[owner] = np.broadcast_to(self.period, self.begin.shape)[own]

        def last_end(now: np.ndarray) -> np.ndarray:
            """Return the last end of the intervals that contain each client's time; 0: of none."""
            inside = (begin <= now[owner]) & (now[owner] < end)
            ends = np.zeros(len(clients))
            np.maximum.at(ends, owner[inside], end[inside])
            return ends

        times, stays = np.full(len(clients), seconds), np.ones(len(clients), bool)
        while (inside := stays & ((until := last_end(now := times % period)) > 0)).any():
            # A sum that is rounded down is a time at which the client is still there.
            later = np.maximum(times + (until - now), np.nextafter(times, np.inf))
            times = np.where(inside, later, times)
            stays = times - seconds <= period
        return np.where(stays, times, np.inf)

    def next_time(self, clients: np.ndarray, seconds: float) -> float:
        """Return the first time, from a time on, at which one of some clients is there.

        Returns:
            The time; inf if none of them is ever there.
        """
        of_clients = np.isin(self.clients, clients)
        if not of_clients.any():
            return np.inf
        if not (of_clients & self._contain(seconds)).any():
            waits = (self.begin - seconds) % self.period
            seconds += float(waits[of_clients].min())
        while not (of_clients & self._contain(seconds)).any():  # The sum was rounded down.
            seconds = float(np.nextafter(seconds, np.inf))
        return seconds

    def _contain(self, seconds: float, rows: slice = slice(None)) -> np.ndarray:
        """Whether each interval of some rows contains a time, bool [rows]."""
        now = seconds % np.broadcast_to(self.period, self.begin.shape)[rows]
        contain: np.ndarray = (self.begin[rows] <= now) & (now < self.end[rows])
        return contain


@dataclass(frozen=True)
class DeviceTable:
    """The devices of all clients.

    Attributes:
        speed: Floating-point operations a second, float64 [clients].
        download: Bytes a second from the server, float64 [clients].
        upload: Bytes a second to the server, float64 [clients].
        failure: Probability that a client breaks off in a round, float64 [clients].
        presence: When clients are there; None: always.
    """

    speed: np.ndarray
    download: np.ndarray
    upload: np.ndarray
    failure: np.ndarray
    presence: Presence | None = None

    def seconds(self, down: float, up: float, operations: np.ndarray) -> np.ndarray:
        """Return the time that each client takes for a round.

        Args:
            down: Bytes that a client receives.
            up: Bytes that it sends.
            operations: Floating-point operations of each client, [clients].
        """
        seconds: np.ndarray = down / self.download + operations / self.speed + up / self.upload
        return seconds


@dataclass(frozen=True)
class Offer:
    """What a server knows when it selects the clients of a round.

    Attributes:
        round: Number of the round, 1, 2, ...
        count: Number of clients to select, at most that of ``clients``; a selection may give fewer.
        clients: The clients that are there, ascending, int64.
        sizes: Numbers of training samples of all clients, int64 [clients].
        seconds: Seconds that each client would take for the round, [clients]; None without devices.
        losses: Function that asks clients for the mean loss of the shared model on their training
            samples, float64. What it costs them, in time, bytes and operations, is counted.
        generator: Random numbers for this round.
        gradients: Function that asks clients for the gradients of these losses by the weights of
            the shared model, [K, d], on the CPU; counted likewise.
    """

    round: int
    count: int
    clients: np.ndarray
    sizes: np.ndarray
    seconds: np.ndarray | None
    losses: Callable[[np.ndarray], np.ndarray]
    generator: np.random.Generator
    gradients: Callable[[np.ndarray], Tensor]


@dataclass(frozen=True)
class Outcome:
    """What a server learns of the clients whose work it got in a round.

    Attributes:
        round: Number of the round.
        clients: The clients, int64 [K].
        losses: Their mean training losses in the round, float64 [K].
        seconds: Seconds that each of them took, float64 [K]; None without devices.
    """

    round: int
    clients: np.ndarray
    losses: np.ndarray
    seconds: np.ndarray | None


def _no_memory(clients: int) -> Tree:
    return {}


def _learn_nothing(memory: Any, outcome: Outcome) -> Tree:
    return dict(memory)


def _need_nothing(clients: int, row_bytes: int) -> int:
    return 0


@dataclass(frozen=True)
class Selection:
    """Selection of the clients of a round, as a component builds it.

    Attributes:
        select: Function from the memory and an offer to the selected clients and the next memory.
        init: Function from the number of clients to the memory before round 1, a tree of tensors
            on the CPU.
        learn: Function from the memory and the outcome of a round to the next memory.
        upload_bytes: Bytes that each participant sends for the selection, beside the method's.
        asks_clients: Whether it asks clients for losses or gradients, so that there must be a
            shared model.
        needed_bytes: Function from the number of clients and the bytes of the model's weights to
            the bytes that selecting needs beside the memory, if these can be many.
    """

    select: Callable[[Any, Offer], tuple[np.ndarray, Tree]]
    init: Callable[[int], Tree] = _no_memory
    learn: Callable[[Any, Outcome], Tree] = _learn_nothing
    upload_bytes: int = 0
    asks_clients: bool = False
    needed_bytes: Callable[[int, int], int] = _need_nothing


def check_selection(
    component: Any, has_devices: bool, participants: int, training: Training
) -> None:
    """Refuse a selection that cannot select with given devices, clients and settings.

    Args:
        component: The component that builds it. It may have ``needs_devices``, and a method
            ``check`` that raises `FedloomError`, of the number of clients that can take part and
            the settings of training.
        has_devices: Whether clients have devices, so that rounds take time.
        participants: Number of clients that can take part.
        training: Settings of training.

    Raises:
        FedloomError: If it cannot.
    """
    if getattr(component, "needs_devices", False) and not has_devices:
        problem = (
            "selection: selects by the time of a round, but without devices nothing takes time"
        )
        raise FedloomError(problem, advice="set devices, or choose another selection")
    if hasattr(component, "check"):
        component.check(participants, training)


@dataclass(frozen=True)
class ArrivedUploads:
    """The uploads with which an asynchronous server makes its next version.

    A row holds weights and running statistics one after another.

    Attributes:
        rows: The change of each client's weights since the server sent them, [K, d].
        moves: The change of the server's own weights since then, [K, d].
        staleness: Number of versions since then, int64 [K]; 0: it was sent the newest.
        weights: Weights of the clients in means, [K].
        clients: Ids of the clients, int64 [K], in host memory.
        count: Number of all clients.
        statistics: Where a row has running statistics, bool [d].
        memory: What the server remembers, in host memory.
    """

    rows: Tensor
    moves: Tensor
    staleness: Tensor
    weights: Tensor
    clients: Tensor
    count: int
    statistics: Tensor
    memory: Any = field(default_factory=dict)

    @property
    def distances(self) -> Tensor:
        """Each client's weights less the newest version of the server, [K, d]."""
        return self.rows - self.moves

    def with_own_statistics(self, changes: Tensor) -> Tensor:
        """Return changes [K, d] under which running statistics become those of the clients.

        Changes of different versions, one after another, may sum to a negative variance.
        """
        return torch.where(self.statistics, self.distances, changes)


def _forget(clients: int, row: Tensor) -> Tree:
    return {}


@dataclass(frozen=True)
class AsynchronousServer:
    """A server that does not wait for all clients, as a component builds it.

    Attributes:
        change: Function from arrived uploads to the changes [K, d] of the newest version of which
            the method's server takes the mean, and the next memory.
        size: Number of uploads of which the next version is made.
        concurrency: Number of clients that train at once.
        init: Function from the number of clients and a row of zeros, [d], to the first memory.
    """

    change: Callable[[ArrivedUploads], tuple[Tensor, Tree]]
    size: int
    concurrency: int
    init: Callable[[int, Tensor], Tree] = _forget


def staleness_factor(name: str, staleness: Tensor, a: float, b: float = 0.0) -> Tensor:
    """Return s(t - v) of FedAsync, section 5.2: how much less an old upload counts.

    Args:
        name: ``constant``: 1. ``hinge``: 1 up to b, and 1 / (a (t - v - b) + 1) above.
            ``polynomial``: (t - v + 1)^-a.
        staleness: Number of versions t - v since the client was sent one, int64 [K].
        a: How fast it falls.
        b: Number of versions without effect.
    """
    late = staleness.to(torch.float64)
    if name == "hinge":
        return torch.where(late <= b, 1.0, 1 / (a * (late - b) + 1))
    return (late + 1) ** -a if name == "polynomial" else torch.ones_like(late)
