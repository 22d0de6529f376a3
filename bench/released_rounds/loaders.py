"""The batches of a run, in the form in which PFLlib reads its own.

PFLlib makes a `DataLoader` in each call of `load_train_data` and iterates over it once per epoch.
Here a call gives the batches of certain passes of the run, epoch by epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bench.released_rounds.population import BATCH, SIZES, VALIDATION
from fl.engine.batches import Schedule
from fl.engine.sample_arrays import Arrays
from fl.engine.state import PhaseSchedule, RoundSchedule

Batches = list[tuple[Tensor, Tensor, Tensor | None]]
"""Inputs, labels, and keys of random numbers of successive batches."""

PassPosition = tuple[int, int]
"""Number of a phase in its round, and number of a pass in its phase."""

LAST_PASS: PassPosition = (-1, -1)


class Loader:
    """Batches in the interface of a `DataLoader`: each iteration goes on to the next epoch."""

    def __init__(self, batches: Batches, epoch: int, feed: Feed) -> None:
        self.batches, self.epoch, self.feed, self.position = batches, epoch, feed, 0

    def __len__(self) -> int:
        return self.epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        begin = self.position
        self.position = (begin + self.epoch) % len(self.batches)
        for x, y, keys in self.batches[begin : begin + self.epoch]:
            self.feed.keys = keys
            yield x, y


Calls = Sequence[Sequence[PassPosition]]
"""For each call of `load_train_data` by a client in a round, the passes whose batches it gets, one
after another. No pass: all samples in order. Later calls get those of the last one."""


@dataclass
class Feed:
    """The batches of all rounds, given in the order in which a peer's clients ask for them.

    Attributes:
        schedules: The schedules of the rounds.
        arrays: The samples.
        calls: See `Calls`.
        first_calls: Calls before round 1, from the batches of round 1.
        arrange: Change of the order of a batch's samples.
        repeats: Number of successive steps on each batch, which the peer counts itself.
        round: Number of the round, from 0; -1 before the first.
        counts: Calls of each client in the round.
        keys: Keys of random numbers of the newest batch's samples.
    """

    schedules: Sequence[RoundSchedule]
    arrays: Arrays
    calls: Calls = ((LAST_PASS,),)
    first_calls: Calls = ()
    arrange: Callable[[Tensor], Tensor] = lambda index: index
    repeats: int = 1
    round: int = -1
    counts: dict[int, int] = field(default_factory=dict)
    keys: Tensor | None = None

    def begin_round(self) -> list[int]:
        """Go on to the next round, and return its participants."""
        self.round += 1
        self.counts = {}
        phase = self.schedules[self.round].phases[-1]
        assert phase is not None
        return [int(client) for client in phase.clients]

    def loader(self, client: int, size: int | None = None) -> Loader:
        """Return the batches for a client's next call in the round.

        Args:
            client: The client.
            size: Size of the batches; 1: all samples, one by one.
        """
        calls = self.calls if self.round >= 0 else self.first_calls or ((),)
        number = self.counts.get(client, 0)
        self.counts[client] = number + 1
        passes = calls[min(number, len(calls) - 1)]
        if size == 1 or not passes or not all(self.takes_part(client, at) for at in passes):
            return self.in_order(client, size or BATCH)
        batches = [batch for position in passes for batch in self.batches(client, position)]
        return self.loader_of(client, batches)

    def loader_of(self, client: int, batches: Batches) -> Loader:
        """Return a loader of some batches of a client."""
        return Loader(batches, min(len(batches), int(SIZES[client]) // BATCH), self)

    def everything(self, client: int) -> list[tuple[Tensor, Tensor]]:
        """Return all samples of a client, one by one."""
        index = self._samples(client)
        return list(zip(self.arrays.inputs(index), self.arrays.labels(index), strict=True))

    def validation(self, client: int) -> tuple[Tensor, Tensor]:
        """Return the validation samples of a client, as one batch."""
        begin = int(SIZES.sum()) + client * VALIDATION
        index = torch.arange(begin, begin + VALIDATION)
        return self.arrays.inputs(index), self.arrays.labels(index)

    def batches(self, client: int, position: PassPosition) -> Batches:
        """Return the batches of a client in a pass of the round."""
        phase = self._phase(position)
        schedule = phase.schedules[position[1]]
        assert schedule is not None
        row = phase.clients.tolist().index(client)
        steps = range(0, int(schedule.steps[row]), self.repeats)
        return [self._batch(schedule, row, step) for step in steps]

    def _phase(self, position: PassPosition) -> PhaseSchedule:
        phase = self.schedules[max(self.round, 0)].phases[position[0]]
        assert phase is not None
        return phase

    def takes_part(self, client: int, position: PassPosition) -> bool:
        """Whether a client has a part in a pass of the round."""
        return client in self._phase(position).clients.tolist()

    def _samples(self, client: int) -> Tensor:
        begin = int(SIZES[:client].sum())
        return torch.arange(begin, begin + int(SIZES[client]))

    def in_order(self, client: int, size: int = BATCH) -> Loader:
        """Return all samples of a client in order, in batches of a size."""
        parts = self._samples(client).split(size)
        batches: Batches = [(self.arrays.inputs(at), self.arrays.labels(at), None) for at in parts]
        return Loader(batches, len(batches), self)

    def _batch(
        self, schedule: Schedule, row: int, step: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        index = torch.from_numpy(schedule.index[row, step][schedule.weight[row, step]])
        index = self.arrange(index)
        keys = schedule.keys()
        key = None if keys is None else torch.from_numpy(keys[row, step])
        return self.arrays.inputs(index), self.arrays.labels(index), key
