"""The batches of clients on the device, with the outputs of reference models on their samples.

Models that do not change during a pass give the same output for a sample in every epoch. So they
are computed once for every sample, where that costs less than once per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import Pass, Refresh
from fl.api.protocols import Batch, ReferenceModels
from fl.api.tasks.classification import CLASS_WEIGHT, SMOOTHING
from fl.api.trees import Tree
from fl.engine.arrays import Arrays
from fl.engine.batches import Schedule

CHUNK = 256
"""Samples that a model sees at once."""

AHEAD = 2**20
"""Bytes of batches that are gathered at once: many steps of a small model, one of a large one."""

ROOM = 2**30
"""Bytes that what is remembered may take. A constant, as whether a number is looked up or computed
in another batch decides its last bits.
"""

PAYS = 2
"""How often a pass must come to a sample on average, refreshes included."""

Models = Callable[[int], tuple[Tree, Tree]]
"""The server's tree and the work tree of the client in a row."""


class Batches:
    """The batches of some clients; reference ``models`` are run here, if once per sample pays."""

    def __init__(self, pass_: Pass, schedule: Schedule, arrays: Arrays, models: Models) -> None:
        self._arrays, self._steps, keys = arrays, schedule.steps, schedule.keys()
        self._index = torch.from_numpy(schedule.index).to(arrays.device)
        self._weight = torch.from_numpy(schedule.weight).to(arrays.device)
        self._keys = None if keys is None else torch.from_numpy(keys).to(arrays.device)
        self._extra = [torch.from_numpy(index).to(arrays.device) for index in schedule.extra]
        self._known = _remember(pass_, schedule, arrays, models)
        self._targets = _targets(schedule, arrays, self._index)

    def at(self, rows: int | slice | Tensor, steps: int | slice | Tensor) -> Batch:
        """The batches of some clients and steps; leaves are [b, ...] after the chosen axes."""
        return self._gathered(lambda t: t[rows, steps])

    def _gathered(self, chosen: Callable[[Tensor], Tensor]) -> Batch:
        """chosen: what is wanted of a tensor [K, S, b]."""
        key = None if self._keys is None else chosen(self._keys)
        batch = self._arrays.batch(chosen(self._index), chosen(self._weight), key)
        batch |= {name: chosen(values) for name, values in self._targets.items()}
        if self._known is None:
            return batch
        return {**batch, "reference": trees.take(self._known.table, chosen(self._known.index))}

    def each(self) -> Iterator[tuple[int, Batch]]:
        """For each step how many clients take it and their batches, where those with most steps
        come first.
        """
        still = (self._steps > np.arange(self._steps.max())[:, None]).sum(1).tolist()
        many = self._at_once(len(self._steps)) if still else 1
        for begin in range(0, len(still), many):
            # Steps before clients, so that the batches of a step lie together.
            rows, now = slice(0, still[begin]), slice(begin, begin + many)
            batch = self._gathered(partial(_by_step, rows, now))
            for place, count in enumerate(still[now]):
                yield count, trees.take(trees.take(batch, place), slice(0, count))

    def apart(self, rows: Tensor, steps: np.ndarray) -> Iterator[Batch]:
        """For each time the batches of some clients, each at a step of its own, [times, clients];
        leaves are [clients, b, ...]. After a client's last step that is any of its batches.
        """
        last = max(0, self._index.shape[1] - 1)
        wanted, many = torch.from_numpy(steps.clip(max=last)), self._at_once(len(rows))
        for now in wanted.to(rows.device).split(many):
            batch = self.at(rows, now)
            for place in range(len(now)):
                yield trees.take(batch, place)

    def _at_once(self, clients: int) -> int:
        """For how many steps the batches of so many clients are gathered at once."""
        size = trees.nbytes(self.at(slice(0, 1), 0))
        return max(1, AHEAD // (size * clients))

    def extra(self, number: int, refresh: Refresh, row: int, step: int) -> Batch:
        """All samples of a client's refresh after ``step``, as one batch, not augmented."""
        time = (step + 1 - refresh.first_step) // refresh.interval
        index = self._extra[number][row, time]
        batch = self._arrays.batch(index, torch.ones_like(index))
        if self._known is None:
            return batch
        reference = trees.take(self._known.table, self._known.extra[number][row, time])
        return {**batch, "reference": reference}


def _targets(schedule: Schedule, arrays: Arrays, index: Tensor) -> dict[str, Tensor]:
    """What batches say of how samples count in cross-entropy, [K, S, b] each.

    index: that of the schedule, on the device.
    """
    given: dict[str, Tensor] = {}
    if schedule.class_weights is not None:
        table = torch.from_numpy(schedule.class_weights).to(index.device, arrays.dtype)
        labels = arrays.labels(index).reshape(len(index), -1)
        given[CLASS_WEIGHT] = table.gather(1, labels).reshape(index.shape)
    if schedule.smoothing:
        given[SMOOTHING] = torch.full_like(index, schedule.smoothing, dtype=arrays.dtype)
    return given


def _by_step(rows: slice, steps: slice, tensor: Tensor) -> Tensor:
    return tensor[rows, steps].transpose(0, 1)


def ask(
    look: ReferenceModels | None,
    server: Tree,
    work: Tree,
    batch: Batch,
) -> dict[str, Any]:
    """The batch with the outputs of reference models, unless it has them already or needs none."""
    if look is None or "reference" in batch:
        return dict(batch)
    with torch.no_grad():
        return {**batch, "reference": look(server, work, batch)}


@dataclass(frozen=True)
class _Known:
    """Outputs of reference models, computed in advance.

    Attributes:
        table: The outputs for every sample of all clients.
        index, extra: Positions in the table, in place of the sample numbers of
            `fl.engine.batches.Schedule`.
    """

    table: dict[str, Any]
    index: Tensor
    extra: list[Tensor]


def _remember(pass_: Pass, schedule: Schedule, arrays: Arrays, models: Models) -> _Known | None:
    """The outputs of reference models for every sample.

    Returns:
        None where there is no reference, where batches are augmented and so differ each time, and
        where a table would not pay or take too much memory.
    """
    if pass_.reference is None or arrays.random:
        return None
    samples = [_samples(schedule, row) for row in range(len(schedule.steps))]
    begins = np.cumsum([0, *map(len, samples)])
    visits = schedule.steps.sum() * schedule.index.shape[-1]
    visits += sum(extra.size for extra in schedule.extra)
    if visits < PAYS * begins[-1]:
        return None
    table: list[dict[str, Any]] = []
    # All at once: each copy waits for what the device has to do.
    everything = torch.from_numpy(np.concatenate(samples)).to(arrays.device)
    for row, numbers in enumerate(everything.split(list(map(len, samples)))):
        server, work = models(row)
        for index in numbers.split(CHUNK):
            batch = arrays.batch(index, torch.ones_like(index))
            table.append(ask(pass_.reference, server, work, batch)["reference"])
            if len(table) == 1 and trees.nbytes(table[0]) * begins[-1] > ROOM * len(index):
                return None

    def positions(index: np.ndarray) -> Tensor:
        rows = zip(samples, index, begins[:-1], strict=True)
        # Steps that a client does not take name samples that it may not have.
        places = [
            b + np.searchsorted(numbers, i).clip(max=len(numbers) - 1) for numbers, i, b in rows
        ]
        return torch.from_numpy(np.stack(places)).to(arrays.device)

    extra = list(map(positions, schedule.extra))
    return _Known(trees.concatenate(table), positions(schedule.index), extra)


def _samples(schedule: Schedule, row: int) -> np.ndarray:
    """All samples in a client's batches and refreshes, in ascending order."""
    steps = schedule.index[row, : schedule.steps[row]]
    return np.unique(np.concatenate([steps.ravel(), *(e[row].ravel() for e in schedule.extra)]))
