"""Rounds of an asynchronous server: clients train from different versions of its model.

A *version* is the server's model after a number of updates; a round of such a run is an update.
Clients begin as soon as there is room for them, from the newest version, and the server makes its
next version of a fixed number of uploads. A client whose upload waits for others is not sent
anything new.

Who begins when, and who arrives when, follows from devices, counted costs and the seed, not from
what is trained. So the whole `Timeline` is known beforehand, and a client is trained when it
arrives, from the version that it was sent, in one stack with others that arrive. Of the versions
those are kept, in `State.participation`, from which a client is still under way. So a checkpoint
holds all that is under way.

A client's batches and its learning rate are those of the round in which its upload is used.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count

import numpy as np
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import BuildContext, Method
from fl.api.participation import ArrivedUploads, AsynchronousServer, DeviceTable
from fl.api.trees import Tree
from fl.base import rng
from fl.base.errors import FedloomError
from fl.base.units import quantity
from fl.engine.clock import Clock
from fl.engine.participation import ends_of_work
from fl.engine.simulation import Simulation
from fl.engine.state import HOST, Arrivals, RoundSchedule, RoundTimes, State
from fl.engine.upload_rows import UploadLayout, reason_against_rows


def arriving_rounds(
    clock: Clock, devices: DeviceTable, server: AsynchronousServer, title: str
) -> ArrivingRounds:
    """Return the rounds of an asynchronous server.

    Args:
        clock: What a round costs.
        devices: The devices of all clients.
        server: The server.
        title: Name of the method, for errors.

    Raises:
        FedloomError: If the method or the number of clients does not fit to it.
    """
    run = clock.simulation
    layout = weights_layout(run.method, run.context(run.seed), title)
    participants = len(run.client_data.participants)
    for key, number in (("size", server.size), ("concurrency", server.concurrency)):
        if number > participants:
            problem = f"asynchronous.{key}: is {number}, but {participants} clients can take part"
            raise FedloomError(problem, f"1 to {participants}")
    if server.size > server.concurrency:
        problem = f"asynchronous.size: is {server.size}, but {server.concurrency} train at once"
        raise FedloomError(problem, f"1 to {server.concurrency}", "a larger concurrency")
    return ArrivingRounds(clock, devices, server, layout)


def weights_layout(method: Method, context: BuildContext, title: str) -> UploadLayout:
    """Return how uploads of a method become rows of changes of weights.

    Raises:
        FedloomError: If clients send anything else, which no server can move to another version.
    """
    reason = reason_against_rows(method, context)
    layout = UploadLayout.of(method, context) if not reason else None
    if layout and not layout.float_indices:
        reason = "its clients send nothing"
    elif layout and {*layout.float_indices} - layout.server_paths.keys():
        reason = "its clients send something else than weights"
    if reason or layout is None:
        raise FedloomError(
            f"asynchronous: {title} cannot use it, because {reason}",
            advice="choose a method whose server averages weights, and whose clients send nothing "
            "else, such as fedavg, fedprox, ditto, fedper",
        )
    return layout


BREAKS = 10_000
"""Clients that break off for each upload of an update, before the devices are refused."""

DRAWS = 4
"""Draws among all clients for each that is to begin, before all of them are looked at."""


@dataclass(frozen=True)
class Update:
    """An update of the server.

    Attributes:
        clients: The clients whose uploads it uses, ascending, int64 [K].
        versions: The version that each was sent, int64 [K].
        begin: When each began, in seconds, [K].
        arrival: When each arrived, [K].
        seconds: When the update takes place.
        under_way: The versions from which clients train after it, ascending, and its own.
        sent: Number of clients that were sent a model since the update before.
        dropped: Number of clients that have broken off since the update before.
        lost: Seconds of work of these.
    """

    clients: np.ndarray
    versions: np.ndarray
    begin: np.ndarray
    arrival: np.ndarray
    seconds: float
    under_way: list[int]
    sent: int
    dropped: int
    lost: float


@dataclass(frozen=True, eq=False)
class Timeline:
    """Draws who begins and who arrives when.

    Attributes:
        devices: The devices of all clients.
        everybody: The clients that can take part.
        seconds: Function from a round to the seconds that each client takes, [clients].
        size: Number of uploads of an update.
        concurrency: Number of clients that train at once.
        seed: Seed of the run.
    """

    devices: DeviceTable
    everybody: np.ndarray
    seconds: Callable[[int], np.ndarray]
    size: int
    concurrency: int
    seed: int

    def updates(self) -> Iterator[Update]:
        """Yield the updates 1, 2, ...

        Raises:
            FedloomError: If no client is ever there again, or if none ends its work.
        """
        under_way: list[tuple[float, int, bool, float, int]] = []
        waiting: list[tuple[int, int, float, float]] = []
        is_free = np.zeros(self.devices.speed.shape, bool)
        is_free[self.everybody] = True
        version, now, sent, dropped, lost, refills = 0, 0.0, 0, 0, 0.0, count()
        while True:
            for event in self._begin(is_free, len(under_way), now, version, next(refills)):
                heapq.heappush(under_way, event)
                is_free[event[1]] = False
                sent += 1
            if not under_way:
                now = self._next_presence(is_free, now)
                continue
            now = under_way[0][0]
            # All that ends at this time, in the order of clients, before anybody begins anew.
            while under_way and under_way[0][0] == now:
                end, client, answers, begin, was_sent = heapq.heappop(under_way)
                if not answers:
                    is_free[client] = True
                    dropped, lost = dropped + 1, lost + end - begin
                    if dropped > BREAKS * self.size:
                        problem = f"devices: {dropped} clients broke off after update {version},"
                        problem += f" before {quantity(self.size, 'upload')} arrived"
                        advice = "less failure, faster devices, or longer times of presence"
                        raise FedloomError(problem, advice=advice)
                    continue
                waiting.append((client, was_sent, begin, end))
                if len(waiting) == self.size:
                    columns = zip(*sorted(waiting), strict=True)
                    clients, versions, begins, arrivals = map(np.array, columns)
                    version, waiting, refills = version + 1, [], count()
                    still = sorted({version, *(event[-1] for event in under_way)})
                    yield Update(
                        clients, versions, begins, arrivals, now, still, sent, dropped, lost
                    )
                    is_free[clients] = True
                    sent, dropped, lost = 0, 0, 0.0

    def _begin(
        self, is_free: np.ndarray, under_way: int, now: float, version: int, refill: int
    ) -> list[tuple[float, int, bool, float, int]]:
        """Return the clients that begin now, each with its end and whether it answers then."""
        if under_way == self.concurrency:
            return []
        # The first key is that of a round in which all clients begin at once.
        key = (version + 1, refill) if refill else (version + 1,)
        generator = rng.generator(self.seed, "participants", *key)
        clients = self._draw(is_free, under_way, now, generator)
        if not len(clients):
            return []
        seconds = self.seconds(version + 1)[clients]
        ends, answers = ends_of_work(self.devices, clients, now, seconds, self.seed, *key)
        return [
            (float(end), int(client), bool(answer), now, version)
            for end, client, answer in zip(ends, clients, answers, strict=True)
        ]

    def _draw(
        self, is_free: np.ndarray, under_way: int, now: float, generator: np.random.Generator
    ) -> np.ndarray:
        """Return the clients that fill the room, of those that are free and there; ascending.

        Where clients are many, most of them are free: a few draws find them, and no event looks at
        all clients.
        """
        presence, room, drawn = self.devices.presence, self.concurrency - under_way, set[int]()
        for _ in range(DRAWS * room if under_way else 0):
            if len(drawn) == room:
                break
            client = int(self.everybody[generator.integers(len(self.everybody))])
            if is_free[client] and (presence is None or presence.has(client, now)):
                drawn.add(client)
        missing = room - len(drawn)
        if missing:
            candidates = np.setdiff1d(np.flatnonzero(is_free), list(drawn), assume_unique=True)
            if presence is not None:
                candidates = np.intersect1d(candidates, presence.present(now), assume_unique=True)
            missing = min(missing, len(candidates))
            drawn.update(generator.choice(candidates, missing, replace=False).tolist())
        return np.array(sorted(drawn), np.int64)

    def _next_presence(self, is_free: np.ndarray, now: float) -> float:
        presence = self.devices.presence
        then = presence.next_time(np.flatnonzero(is_free), now) if presence else math.inf
        if math.isinf(then):
            raise FedloomError("devices: no client is ever there", advice="other times of presence")
        return then


@dataclass(frozen=True, eq=False)
class ArrivingRounds:
    """Rounds of an asynchronous server.

    Attributes:
        clock: What a round costs.
        devices: The devices of all clients.
        server: The server.
        layout: How uploads become rows.
    """

    clock: Clock
    devices: DeviceTable
    server: AsynchronousServer
    layout: UploadLayout

    def update(self, number: int) -> Update:
        """Return update 1, 2, ... of the run."""
        updates, timeline = self._updates
        while len(updates) < number:
            updates.append(next(timeline))
        return updates[number - 1]

    @cached_property
    def _updates(self) -> tuple[list[Update], Iterator[Update]]:
        """The updates that are known, and the generator of the next ones."""
        run = self.clock.simulation
        timeline = Timeline(
            self.devices,
            run.client_data.participants,
            self.clock.seconds,
            self.server.size,
            self.server.concurrency,
            run.seed,
        )
        return [], timeline.updates()

    def begin(self, state: State) -> Tree:
        """Return `State.participation` before round 1."""
        memory = self.server.init(state.client_states.count, self.layout.zeros.to(HOST))
        return {
            "version": torch.tensor([0]),
            "sent": trees.to(trees.stack([self._message(state)]), HOST),
            "memory": dict(memory),
        }

    def _message(self, state: State) -> Tree:
        send = self.clock.simulation.method.send
        return dict(send(state.server) if send else state.server)

    def count(self, simulation: Simulation) -> int:
        """Return the number of clients whose work the server asks for in a round."""
        return self.server.size

    def schedule(self, simulation: Simulation, round_: int, state: State) -> RoundSchedule:
        """Return the schedule of a round, which is an update of the server."""
        update = self.update(round_)
        kept = state.participation["version"].numpy()
        rows = torch.from_numpy(np.searchsorted(kept, update.versions))
        sent = trees.to(trees.take(state.participation["sent"], rows), simulation.device)
        down, up = self.clock.message_bytes(round_)
        begin = self.update(round_ - 1).seconds if round_ > 1 else 0.0
        times = RoundTimes(
            begin=begin,
            end=update.seconds,
            busy=update.arrival - update.begin,
            lost=update.lost,
            dropped=update.dropped,
            bytes_down=down * update.sent,
            bytes_up=up * len(update.clients),
            is_waiting=False,
        )
        schedule = simulation.scheduler.round_schedule(round_, update.clients, ())
        staleness = torch.from_numpy(round_ - 1 - update.versions)

        def rebase(state: State, uploads: Tree, weights: Tensor) -> tuple[State, Tree]:
            return self._rebase(state, sent, uploads, weights, staleness, schedule.clients)

        return replace(schedule, times=times, arrivals=Arrivals(sent, rebase))

    def _rebase(
        self,
        state: State,
        sent: Tree,
        uploads: Tree,
        weights: Tensor,
        staleness: Tensor,
        clients: Tensor,
    ) -> tuple[State, Tree]:
        """Return the uploads as changes of the newest version, and the state with the memory."""
        newest = self._message(state)
        moves = self.layout.moves(newest, sent)
        rows = self.layout.rows(sent, uploads)
        arrived = ArrivedUploads(
            rows,
            moves,
            staleness.to(rows.device),
            weights,
            clients,
            state.client_states.count,
            self.layout.statistics.to(rows.device),
            state.participation["memory"],
        )
        changed, memory = self.server.change(arrived)
        # An upload that stays as it is, from the newest version, keeps its bits.
        is_equal = (changed == rows) & (moves == 0)
        rebased = self.layout.with_rows(newest, uploads, changed.to(rows.dtype), is_equal)
        participation = {**state.participation, "memory": trees.to(dict(memory), HOST)}
        return replace(state, participation=participation), rebased

    def finish(
        self, simulation: Simulation, schedule: RoundSchedule, state: State, losses: Tensor
    ) -> Tree:
        """Return `State.participation` after a round: the versions from which clients train."""
        before = state.participation
        *old, newest = self.update(schedule.round).under_way
        index = torch.from_numpy(np.searchsorted(before["version"].numpy(), old))
        kept = trees.take(before["sent"], index)
        return {
            "version": torch.tensor([*old, newest]),
            "sent": trees.concatenate([kept, trees.to(trees.stack([self._message(state)]), HOST)]),
            "memory": before["memory"],
        }
