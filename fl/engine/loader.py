"""The batches of clients on the device, with the outputs of reference models for their samples.

Reference models do not change during a pass, so they give the same output for a sample in every
epoch. Their outputs are computed once per sample where that takes less time than once per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import Pass, Refresh
from fl.api.protocols import Batch, ReferenceModels
from fl.api.tasks.classification import CLASS_WEIGHT, SMOOTHING
from fl.api.trees import Tree
from fl.engine.batches import Schedule
from fl.engine.sample_arrays import Arrays

REFERENCE_BATCH_SIZE = 256
"""Samples in one pass through a reference model."""

PREFETCH_BYTES = 2**20
"""Bytes of batches that are gathered at once: many steps of a small model, one of a large one."""

MAX_TABLE_BYTES = 2**30
"""Largest size of a table of reference outputs.

It is a constant, because the last bits of an output depend on whether it is looked up or computed
in another batch.
"""

MIN_USES_PER_SAMPLE = 2
"""Mean uses of a sample in a pass, refreshes included, from which a table is worthwhile."""

Models = Callable[[int], tuple[Tree, Tree]]
"""Function from a row to the server's tree and the work tree of its client."""


class Batches:
    """The batches of some clients, with the outputs of reference models if these are precomputed.

    Args:
        pass_: The pass.
        schedule: The batches of K clients.
        arrays: The samples.
        models: Trees of each client at the beginning of the pass.
    """

    def __init__(self, pass_: Pass, schedule: Schedule, arrays: Arrays, models: Models) -> None:
        self._arrays, self._steps, keys = arrays, schedule.steps, schedule.keys()
        self._index = torch.from_numpy(schedule.index).to(arrays.device)
        self._weight = torch.from_numpy(schedule.weight).to(arrays.device)
        self._keys = None if keys is None else torch.from_numpy(keys).to(arrays.device)
        self._refresh_index = [
            torch.from_numpy(index).to(arrays.device) for index in schedule.refresh_index
        ]
        self._references = _precompute_references(pass_, schedule, arrays, models)
        self._label_options = _label_options(schedule, arrays, self._index)

    def at(self, rows: int | slice | Tensor, steps: int | slice | Tensor) -> Batch:
        """Return the batches of some clients and steps.

        Args:
            rows: Rows of the clients.
            steps: Steps.

        Returns:
            A batch whose leaves are [b, ...] after the chosen axes.
        """
        return self._gather(lambda t: t[rows, steps])

    def _gather(self, select: Callable[[Tensor], Tensor]) -> Batch:
        """Gather the batches that a function selects from tensors [K, S, b]."""
        key = None if self._keys is None else select(self._keys)
        batch = self._arrays.batch(select(self._index), select(self._weight), key)
        options = {name: select(values) for name, values in self._label_options.items()}
        batch = {**batch, **options}
        if self._references is None:
            return batch
        outputs = trees.take(self._references.table, select(self._references.index))
        return {**batch, "reference": outputs}

    def iterate_steps(self) -> Iterator[tuple[int, Batch]]:
        """Yield for each step the number of clients that take it, and their batches.

        Clients must be in descending order of their steps.
        """
        counts = (self._steps > np.arange(self._steps.max())[:, None]).sum(1).tolist()
        prefetch = self._prefetch_steps(len(self._steps)) if counts else 1
        for begin in range(0, len(counts), prefetch):
            # Steps are the first axis, so that the batches of a step are adjacent in memory.
            rows, steps = slice(0, counts[begin]), slice(begin, begin + prefetch)
            batch = self._gather(partial(_select_by_step, rows, steps))
            for index, count in enumerate(counts[steps]):
                yield count, trees.apply(partial(_select_rows, index, count), batch)

    def iterate_turns(self, rows: Tensor, steps: np.ndarray) -> Iterator[Batch]:
        """Yield for each time the batches of some clients, each client at its own step.

        Args:
            rows: Rows of the clients.
            steps: Step of each client at each time, [times, clients]; after a client's last step
                its batch is arbitrary.

        Yields:
            Batches whose leaves are [clients, b, ...].
        """
        last = max(0, self._index.shape[1] - 1)
        clipped = torch.from_numpy(steps.clip(max=last))
        for chunk in clipped.to(rows.device).split(self._prefetch_steps(len(rows))):
            batch = self.at(rows, chunk)
            for index in range(len(chunk)):
                yield trees.take(batch, index)

    def _prefetch_steps(self, clients: int) -> int:
        """Return the number of steps whose batches are gathered at once for ``clients`` clients."""
        size = trees.nbytes(self.at(slice(0, 1), 0))
        return max(1, PREFETCH_BYTES // (size * clients))

    def refresh_batch(self, number: int, refresh: Refresh, row: int, step: int) -> Batch:
        """Return all samples of a client's refresh as one batch, without augmentation.

        Args:
            number: Index of the refresh in the pass.
            refresh: The refresh.
            row: Row of the client.
            step: Step after which the refresh takes place.
        """
        time = (step + 1 - refresh.first_step) // refresh.interval
        index = self._refresh_index[number][row, time]
        batch = self._arrays.batch(index, torch.ones_like(index))
        if self._references is None:
            return batch
        outputs = trees.take(
            self._references.table, self._references.refresh_index[number][row, time]
        )
        return {**batch, "reference": outputs}


def _label_options(schedule: Schedule, arrays: Arrays, index: Tensor) -> dict[str, Tensor]:
    """Return class weights and label smoothing of each sample, as far as set, [K, S, b] each.

    ``index`` is the index of the schedule, on the device.
    """
    options: dict[str, Tensor] = {}
    if schedule.class_weights is not None:
        table = torch.from_numpy(schedule.class_weights).to(index.device, arrays.dtype)
        labels = arrays.labels(index).reshape(len(index), -1)
        options[CLASS_WEIGHT] = table.gather(1, labels).reshape(index.shape)
    if schedule.smoothing:
        options[SMOOTHING] = torch.full_like(index, schedule.smoothing, dtype=arrays.dtype)
    return options


def _select_rows(step: int, count: int, tensor: Tensor) -> Tensor:
    return tensor[step, :count] if count < tensor.shape[1] else tensor[step]


def _select_by_step(rows: slice, steps: slice, tensor: Tensor) -> Tensor:
    return tensor[rows, steps].transpose(0, 1)


def add_reference_outputs(
    reference: ReferenceModels | None, server: Tree, work: Tree, batch: Batch
) -> dict[str, object]:
    """Add the outputs of reference models to a batch, unless it has them or needs none.

    Args:
        reference: The function that computes the outputs; None if the pass needs none.
        server: The server's tree.
        work: The client's work tree.
        batch: The batch.

    Returns:
        The batch, with the outputs as ``reference``.
    """
    if reference is None or "reference" in batch:
        return dict(batch)
    with torch.no_grad():
        return {**batch, "reference": reference(server, work, batch)}


@dataclass(frozen=True)
class _References:
    """Precomputed outputs of reference models.

    Attributes:
        table: The outputs for every sample of all clients.
        index: Positions in the table, in the place of sample numbers in `Schedule.index`.
        refresh_index: Positions in the table, for `Schedule.refresh_index`.
    """

    table: Tree
    index: Tensor
    refresh_index: list[Tensor]


def _precompute_references(
    pass_: Pass, schedule: Schedule, arrays: Arrays, models: Models
) -> _References | None:
    """Compute the outputs of reference models for every sample.

    Returns None if the pass has no reference, if batches are augmented and so differ each time, and
    if a table is not worthwhile or would be too large.
    """
    if pass_.reference is None or arrays.random:
        return None
    samples = [_used_samples(schedule, row) for row in range(len(schedule.steps))]
    begins = np.cumsum([0, *map(len, samples)])
    uses = schedule.steps.sum() * schedule.index.shape[-1]
    uses += sum(index.size for index in schedule.refresh_index)
    if uses < MIN_USES_PER_SAMPLE * begins[-1]:
        return None
    table: list[Tree] = []
    # One copy for all clients, because each copy waits until the device is idle.
    all_samples = torch.from_numpy(np.concatenate(samples)).to(arrays.device)
    for row, numbers in enumerate(all_samples.split(list(map(len, samples)))):
        server, work = models(row)
        for index in numbers.split(REFERENCE_BATCH_SIZE):
            batch = arrays.batch(index, torch.ones_like(index))
            with torch.no_grad():
                table.append(pass_.reference(server, work, batch))
            if len(table) == 1 and trees.nbytes(table[0]) * begins[-1] > MAX_TABLE_BYTES * len(
                index
            ):
                return None

    def positions(index: np.ndarray) -> Tensor:
        # Steps that a client does not take may name samples that it does not have.
        by_client = [
            begin + np.searchsorted(numbers, i).clip(max=len(numbers) - 1)
            for numbers, i, begin in zip(samples, index, begins[:-1], strict=True)
        ]
        return torch.from_numpy(np.stack(by_client)).to(arrays.device)

    refresh_index = list(map(positions, schedule.refresh_index))
    return _References(trees.concatenate(table), positions(schedule.index), refresh_index)


def _used_samples(schedule: Schedule, row: int) -> np.ndarray:
    """Return all samples in a client's batches and refreshes, in ascending order."""
    index = schedule.index[row, : schedule.steps[row]]
    refreshes = (refresh_index[row].ravel() for refresh_index in schedule.refresh_index)
    return np.unique(np.concatenate([index.ravel(), *refreshes]))
