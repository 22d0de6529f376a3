"""Which samples a client sees at which step.

The order is keyed by (seed, client, round). Every batch is full: what the last batch of an epoch
lacks is filled up with other samples of the same client that weigh nothing in the loss, so that
batch statistics are always over `batch_size` samples and stacks of clients keep one shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from fl.api.method import Refresh, Sampling
from fl.api.training import Training
from fl.base import rng
from fl.engine.stragglers import WHOLE, shortened


@dataclass(frozen=True)
class Schedule:
    """The batches of a pass, for K clients of which the longest takes S steps.

    Attributes:
        index: Sample numbers, int64 [K, S, b].
        weight: Weights in the loss, bool [K, S, b].
        steps: How many of the S steps each client takes, int64 [K]. Rows after that are zeros.
        key: Of all randomness inside the steps, int64 [K]; None where there is none.
        extra: For each of the pass's refreshes the samples that it sees, int64 [K, U, s].
        class_weights: See `fl.api.training.Training`, float64 [K, classes]; None: all alike.
        smoothing: `label_smoothing` likewise.
    """

    index: np.ndarray
    weight: np.ndarray
    steps: np.ndarray
    key: np.ndarray | None = None
    extra: tuple[np.ndarray, ...] = ()
    class_weights: np.ndarray | None = None
    smoothing: float = 0.0

    def take(self, rows: np.ndarray | slice) -> Schedule:
        """The schedule of some of the clients."""
        return replace(
            self,
            index=self.index[rows],
            weight=self.weight[rows],
            steps=self.steps[rows],
            key=None if self.key is None else self.key[rows],
            extra=tuple(index[rows] for index in self.extra),
            class_weights=None if self.class_weights is None else self.class_weights[rows],
        )

    def begin(self, steps: int, refreshes: Sequence[Refresh]) -> Schedule:
        """The first steps of every client, with what falls on them of the refreshes given."""
        extra = zip(self.extra, refreshes, strict=False)
        return replace(
            self,
            steps=np.minimum(self.steps, steps),
            extra=tuple(index[:, : refresh.count_in_round(steps)] for index, refresh in extra),
        )

    def keys(self) -> np.ndarray | None:
        """A key for every sample of every step, int64 [K, S, b]."""
        if self.key is None:
            return None
        _, steps, size = self.index.shape
        return self.key[:, None, None] + np.arange(steps * size).reshape(steps, size)


def together(schedules: Sequence[Schedule]) -> Schedule:
    """One schedule of the clients of several."""
    first = schedules[0]
    if len(schedules) == 1:
        return first
    return Schedule(
        _joined([s.index for s in schedules]),
        _joined([s.weight for s in schedules]),
        np.concatenate([s.steps for s in schedules]),
        None if first.key is None else np.concatenate([s.key for s in schedules]),
        tuple(_joined(list(parts)) for parts in zip(*(s.extra for s in schedules), strict=True)),
        None
        if first.class_weights is None
        else np.concatenate([s.class_weights for s in schedules]),
        first.smoothing,
    )


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays [K_i, S_i, b] as one, with zeros where one has fewer steps than another."""
    longest = max(array.shape[1] for array in arrays)
    return np.concatenate([np.pad(a, [(0, 0), (0, longest - a.shape[1]), (0, 0)]) for a in arrays])


def schedule(
    samples: Sequence[np.ndarray],
    clients: Sequence[int],
    training: Training,
    seed: int,
    round_: int,
    purpose: str = "batches",
    *,
    sampling: Sampling | None = None,
    work: Sequence[Fraction] = (),
    labels: Sequence[np.ndarray] = (),
    classes: int = 0,
    keyed: bool = False,
    refreshes: Sequence[Refresh] = (),
    class_weights: np.ndarray | None = None,
) -> Schedule:
    """The batches of one round.

    Args:
        samples: By client, the samples that it holds.
        clients: Their ids, in the same order.
        sampling: How the pass asks for samples.
        work: By client, how much of the pass it does; all of it, if that is not said.
        labels: By client, the labels of its samples, where the pass asks for classes.
        classes: How many there are, likewise.
        keyed: Whether the steps are random in themselves.
        refreshes: Those of the pass.
        class_weights: See `Schedule`.
    """
    sampling = sampling or Sampling()
    whole = lengthened(training, sampling, round_)
    lengths = [shortened(whole, share) for share in work or [WHOLE] * len(clients)]
    generators = [rng.generator(seed, purpose, client, round_) for client in clients]
    if sampling.per_class is None:
        plain = zip(samples, lengths, generators, strict=True)
        drawn = [_client_batches(numbers, length, draw) for numbers, length, draw in plain]
    else:
        by_class = zip(samples, labels, lengths, generators, strict=True)
        drawn = [
            _class_batches(
                [numbers[its == c] for c in range(classes)], length, sampling.per_class, draw
            )
            for numbers, its, length, draw in by_class
        ]
    if sampling.steps_per_batch > 1:
        drawn = [
            tuple(np.repeat(array, sampling.steps_per_batch, axis=0) for array in batches)
            for batches in drawn
        ]
    steps = np.array([len(index) for index, _ in drawn])
    shape = (len(drawn), int(steps.max()), drawn[0][0].shape[1])
    index, weight = np.zeros(shape, np.int64), np.zeros(shape, bool)
    for row, (i, w) in enumerate(drawn):
        index[row, : len(i)], weight[row, : len(i)] = i, w
    random = keyed or sampling.needs_keys
    key = np.array([draw.integers(2**62) for draw in generators]) if random else None
    extra = []
    for refresh in refreshes:
        times = refresh.count_in_round(shape[1])
        size = refresh.batch_count * training.batch_size
        rows = zip(samples, generators, strict=True)
        extra.append(np.stack([_repeatedly(numbers, times, size, draw) for numbers, draw in rows]))
    return Schedule(
        index, weight, steps, key, tuple(extra), class_weights, training.label_smoothing
    )


def balanced(counts: np.ndarray) -> np.ndarray:
    """`class_weights: balanced` of `fl.api.training.Training`, float64 [K, classes].

    Args:
        counts: Training samples of clients by class, [K, classes].
    """
    there = counts > 0
    mean = counts.sum(1, keepdims=True) / there.sum(1, keepdims=True).clip(min=1)
    return np.where(there, mean / counts.clip(min=1), 1.0)


def lengthened(training: Training, sampling: Sampling, round_: int) -> Training:
    """The training settings with the length that a pass asks for."""
    if sampling.steps is not None:
        return replace(training, local_epochs=None, local_steps=sampling.steps(round_))
    if sampling.epochs is not None:
        return replace(training, local_epochs=sampling.epochs, local_steps=None)
    return training


SWEEP = 64
"""Samples of a client that a sweep looks at together."""


def sweeping(samples: Sequence[np.ndarray]) -> Schedule:
    """Every sample once, in order; what a last batch lacks weighs nothing."""
    steps = np.array([-(-len(numbers) // SWEEP) for numbers in samples])
    index = np.zeros((len(samples), max(1, int(steps.max())), SWEEP), np.int64)
    weight = np.zeros(index.shape, bool)
    for row, numbers in enumerate(samples):
        index[row].flat[: len(numbers)], weight[row].flat[: len(numbers)] = numbers, True
    return Schedule(index, weight, steps)


def _repeatedly(
    numbers: np.ndarray, times: int, size: int, draw: np.random.Generator
) -> np.ndarray:
    """``size`` samples, ``times`` over, [times, size]: whole permutations as far as they go."""
    rounds = -(-size // len(numbers))
    return np.array(
        [
            np.concatenate([draw.permutation(numbers) for _ in range(rounds)])[:size]
            for _ in range(times)
        ]
    ).reshape(times, size)


def _client_batches(
    numbers: np.ndarray, training: Training, draw: np.random.Generator
) -> tuple[np.ndarray, ...]:
    """Sample numbers and weights, [steps, b] each; no step without samples."""
    if not len(numbers):
        return np.zeros((0, training.batch_size), np.int64), np.zeros(
            (0, training.batch_size), bool
        )
    epochs = [_epoch(numbers, training, draw) for _ in range(training.local_epochs or 1)]
    if training.local_steps is not None:
        while sum(len(index) for index, _ in epochs) < training.local_steps:
            epochs.append(_epoch(numbers, training, draw))
    index = np.concatenate([i for i, _ in epochs])[: training.local_steps]
    return index, np.concatenate([w for _, w in epochs])[: training.local_steps]


def _class_batches(
    by_class: Sequence[np.ndarray], training: Training, size: int, draw: np.random.Generator
) -> tuple[np.ndarray, ...]:
    """Batches of ``size`` samples of each class, [steps, classes x size], drawn afresh each time.

    An epoch is as long as one of ordinary batches of as many samples.
    """
    total = sum(map(len, by_class))
    steps = training.local_steps
    if steps is None:
        steps = (training.local_epochs or 1) * -(-total // (size * len(by_class)))
    index = np.zeros((steps if total else 0, len(by_class), size), np.int64)
    weight = np.zeros(index.shape, bool)
    for c, numbers in enumerate(by_class):
        if len(numbers):
            index[:, c] = _repeatedly(numbers, len(index), size, draw)
            weight[:, c, : len(numbers)] = True
    return index.reshape(len(index), -1), weight.reshape(len(index), -1)


def steps_of(sizes: np.ndarray, training: Training) -> np.ndarray:
    """Local steps in a round of clients with so many samples each, by the settings alone."""
    if training.local_steps is not None:
        return np.where(sizes > 0, training.local_steps, 0)
    whole = sizes // training.batch_size
    cut = np.logical_and(training.drop_last, whole > 0)
    epoch = np.where(cut, whole, -(-sizes // training.batch_size))
    return (training.local_epochs or 1) * epoch


def _epoch(
    numbers: np.ndarray, training: Training, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    order, size = draw.permutation(numbers), training.batch_size
    if training.drop_last and len(order) > size:
        order = order[: len(order) // size * size]
    steps = -(-len(order) // size)
    index = np.resize(order, steps * size)
    weight = np.arange(steps * size) < len(order)
    return index.reshape(steps, size), weight.reshape(steps, size)
