"""The batches of clients: which samples a client uses at which step.

The order is keyed by (seed, client, round). Every batch is full: the last batch of an epoch is
filled with further samples of the same client, which have weight 0 in the loss. So batch statistics
are always over `batch_size` samples, and stacks of clients keep one shape.

Some clients of a round, the stragglers, do only part of their work (system heterogeneity).

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys
2020. arXiv:1812.06127 (section 5.2). As in that paper, a straggler does a number of local epochs
that is uniform in 1, ..., E; if a study sets steps, a number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from fl.api.method import Refresh, Sampling
from fl.api.training import Training
from fl.base import rng


@dataclass(frozen=True)
class Schedule:
    """The batches of a pass for K clients, of which the longest pass takes S steps.

    Attributes:
        index: Sample numbers, int64 [K, S, b].
        weight: Weights in the loss, bool [K, S, b].
        steps: Number of steps of each client, int64 [K]. Later rows of a client are zeros.
        key: Key of each client's random numbers inside steps, int64 [K]; None if there are none.
        refresh_index: For each refresh of the pass, the samples that it uses, int64 [K, U, s].
        class_weights: See `fl.api.training.Training`, float64 [K, classes]; None: all equal.
        smoothing: `label_smoothing`, see `fl.api.training.Training`.
    """

    index: np.ndarray
    weight: np.ndarray
    steps: np.ndarray
    key: np.ndarray | None = None
    refresh_index: tuple[np.ndarray, ...] = ()
    class_weights: np.ndarray | None = None
    smoothing: float = 0.0

    def take(self, rows: np.ndarray | slice) -> Schedule:
        """Return the schedule of some of the clients."""
        return replace(
            self,
            index=self.index[rows],
            weight=self.weight[rows],
            steps=self.steps[rows],
            key=None if self.key is None else self.key[rows],
            refresh_index=tuple(index[rows] for index in self.refresh_index),
            class_weights=None if self.class_weights is None else self.class_weights[rows],
        )

    def shift(self, begin: int) -> Schedule:
        """Return the schedule with other sample numbers: ``begin`` is that of sample 0."""
        if not begin:
            return self
        refresh_index = tuple(index + begin for index in self.refresh_index)
        return replace(self, index=self.index + begin, refresh_index=refresh_index)

    def begin(self, steps: int, refreshes: Sequence[Refresh]) -> Schedule:
        """Return the first steps of every client.

        Args:
            steps: Largest number of steps of a client.
            refreshes: The refreshes of the pass; those that occur in these steps are included.
        """
        pairs = zip(self.refresh_index, refreshes, strict=True)
        return replace(
            self,
            steps=np.minimum(self.steps, steps),
            refresh_index=tuple(
                index[:, : refresh.count_in_round(steps)] for index, refresh in pairs
            ),
        )

    def keys(self) -> np.ndarray | None:
        """Return a key for every sample of every step, int64 [K, S, b]."""
        if self.key is None:
            return None
        _, steps, size = self.index.shape
        return self.key[:, None, None] + np.arange(steps * size).reshape(steps, size)


def join_schedules(schedules: Sequence[Schedule]) -> Schedule:
    """Join the clients of several schedules in one schedule."""
    first = schedules[0]
    if len(schedules) == 1:
        return first
    return Schedule(
        _pad_and_join([s.index for s in schedules]),
        _pad_and_join([s.weight for s in schedules]),
        np.concatenate([s.steps for s in schedules]),
        None if first.key is None else np.concatenate([s.key for s in schedules]),
        tuple(
            _pad_and_join(list(arrays))
            for arrays in zip(*(s.refresh_index for s in schedules), strict=True)
        ),
        None
        if first.class_weights is None
        else np.concatenate([s.class_weights for s in schedules]),
        first.smoothing,
    )


def _pad_and_join(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Join arrays [K_i, S_i, b]; shorter arrays are padded with zeros to the longest S_i."""
    longest = max(array.shape[1] for array in arrays)
    joined = np.zeros((sum(map(len, arrays)), longest, arrays[0].shape[2]), arrays[0].dtype)
    row = 0
    for array in arrays:
        joined[row : row + len(array), : array.shape[1]] = array
        row += len(array)
    return joined


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
    """Draw the batches of a pass in one round.

    Args:
        samples: Sample numbers of each client.
        clients: Ids of the clients, in the same order.
        training: Settings of training.
        seed: Seed of the run.
        round_: Number of the round.
        purpose: Name of the random stream.
        sampling: Which batches the pass needs.
        work: Share of the pass that each client does; empty: all of it.
        labels: Labels of each client's samples; needed only if batches are drawn by class.
        classes: Number of classes; needed only if batches are drawn by class.
        keyed: Whether the steps themselves are random.
        refreshes: The refreshes of the pass.
        class_weights: See `Schedule`.

    Returns:
        The batches of all clients.
    """
    sampling = sampling or Sampling()
    full_length = set_pass_length(training, sampling, round_)
    shares = work or [FULL_WORK] * len(clients)
    lengths = [shorten_training(full_length, share) for share in shares]
    generators = [rng.generator(seed, purpose, client, round_) for client in clients]
    batches_by_client = _draw_batches(samples, labels, classes, lengths, sampling, generators)
    index, weight = (
        _pad_and_join([array[None] for array in arrays])
        for arrays in zip(*batches_by_client, strict=True)
    )
    steps = np.array([len(index) for index, _ in batches_by_client])
    needs_keys = keyed or sampling.needs_keys
    key = np.array([g.integers(2**62) for g in generators]) if needs_keys else None
    refresh_index = []
    for refresh in refreshes:
        times = refresh.count_in_round(index.shape[1])
        size = refresh.batch_count * training.batch_size
        rows = [
            _draw_repeatedly(numbers, times, size, generator)
            for numbers, generator in zip(samples, generators, strict=True)
        ]
        refresh_index.append(np.stack(rows))
    return Schedule(
        index, weight, steps, key, tuple(refresh_index), class_weights, training.label_smoothing
    )


def balanced_class_weights(counts: np.ndarray) -> np.ndarray:
    """Return the weights for `class_weights: balanced` of `fl.api.training.Training`.

    Args:
        counts: Training samples of clients by class, [K, classes].

    Returns:
        Weights, float64 [K, classes].
    """
    is_present = counts > 0
    mean = counts.sum(1, keepdims=True) / is_present.sum(1, keepdims=True).clip(min=1)
    return np.where(is_present, mean / counts.clip(min=1), 1.0)


def set_pass_length(training: Training, sampling: Sampling, round_: int) -> Training:
    """Return the training settings with the number of epochs or steps that a pass needs."""
    if sampling.steps is not None:
        return replace(training, local_epochs=None, local_steps=sampling.steps(round_))
    if sampling.epochs is not None:
        return replace(training, local_epochs=sampling.epochs, local_steps=None)
    return training


SWEEP_BATCH_SIZE = 64
"""Samples of a client in one batch of a sweep."""


def sweep_schedule(samples: Sequence[np.ndarray]) -> Schedule:
    """Return batches of every sample once, in order; filled-in samples have weight 0."""
    steps = np.array([-(-len(numbers) // SWEEP_BATCH_SIZE) for numbers in samples])
    index = np.zeros((len(samples), max(1, int(steps.max())), SWEEP_BATCH_SIZE), np.int64)
    weight = np.zeros(index.shape, bool)
    for row, numbers in enumerate(samples):
        index[row].flat[: len(numbers)], weight[row].flat[: len(numbers)] = numbers, True
    return Schedule(index, weight, steps)


def _draw_batches(
    samples: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    classes: int,
    lengths: Sequence[Training],
    sampling: Sampling,
    generators: Sequence[np.random.Generator],
) -> list[tuple[np.ndarray, ...]]:
    """Draw the sample numbers and weights of each client, [steps, b] each."""
    if sampling.per_class is None:
        batches_by_client = [
            _client_batches(numbers, length, generator)
            for numbers, length, generator in zip(samples, lengths, generators, strict=True)
        ]
    else:
        batches_by_client = [
            _class_batches(
                [numbers[client_labels == c] for c in range(classes)],
                length,
                sampling.per_class,
                generator,
            )
            for numbers, client_labels, length, generator in zip(
                samples, labels, lengths, generators, strict=True
            )
        ]
    repeats = sampling.steps_per_batch
    if repeats == 1:
        return batches_by_client
    return [
        tuple(np.repeat(array, repeats, axis=0) for array in batches)
        for batches in batches_by_client
    ]


def _draw_repeatedly(
    numbers: np.ndarray, times: int, size: int, generator: np.random.Generator
) -> np.ndarray:
    """Draw ``size`` samples from successive permutations, ``times`` times, [times, size]."""
    if not len(numbers):  # A client without samples takes no steps, so that it uses none of these.
        return np.zeros((times, size), np.int64)
    permutations = -(-size // len(numbers))
    drawn = [
        np.concatenate([generator.permutation(numbers) for _ in range(permutations)])[:size]
        for _ in range(times)
    ]
    return np.array(drawn, np.int64).reshape(times, size)


def _client_batches(
    numbers: np.ndarray, training: Training, generator: np.random.Generator
) -> tuple[np.ndarray, ...]:
    """Draw sample numbers and weights, [steps, b] each; a client without samples takes no step."""
    if not len(numbers):
        return np.zeros((0, training.batch_size), np.int64), np.zeros(
            (0, training.batch_size), bool
        )
    size, used = training.batch_size, len(numbers)
    if training.drop_last and used > size:
        used = used // size * size
    steps = -(-used // size)
    epochs = max(training.local_epochs or 1, -(-(training.local_steps or 0) // steps))
    index = np.empty((epochs, steps * size), np.int64)
    for epoch in range(epochs):
        index[epoch, :used] = generator.permutation(numbers)[:used]
    positions = np.arange(steps * size)
    index[:, used:] = index[:, positions[used:] % used]
    weight = np.tile(positions < used, epochs)
    rows = slice(training.local_steps)
    return index.reshape(-1, size)[rows], weight.reshape(-1, size)[rows]


def _class_batches(
    by_class: Sequence[np.ndarray], training: Training, size: int, generator: np.random.Generator
) -> tuple[np.ndarray, ...]:
    """Draw batches with ``size`` samples of each class, [steps, classes x size].

    An epoch has as many steps as one with ordinary batches of the same number of samples.
    """
    total = sum(map(len, by_class))
    steps = training.local_steps
    if steps is None:
        steps = (training.local_epochs or 1) * -(-total // (size * len(by_class)))
    index = np.zeros((steps if total else 0, len(by_class), size), np.int64)
    weight = np.zeros(index.shape, bool)
    for c, numbers in enumerate(by_class):
        if len(numbers):
            index[:, c] = _draw_repeatedly(numbers, len(index), size, generator)
            weight[:, c, : len(numbers)] = True
    shape = (len(index), len(by_class) * size)
    return index.reshape(shape), weight.reshape(shape)


def count_steps(sizes: np.ndarray, training: Training) -> np.ndarray:
    """Count the local steps of clients in a round by the settings of training.

    Args:
        sizes: Number of samples of each client, int64 [clients].
        training: Settings of training.

    Returns:
        Steps of each client, int64 [clients].
    """
    if training.local_steps is not None:
        return np.where(sizes > 0, training.local_steps, 0)
    full_batches = sizes // training.batch_size
    drops_last = np.logical_and(training.drop_last, full_batches > 0)
    epoch_steps = np.where(drops_last, full_batches, -(-sizes // training.batch_size))
    return (training.local_epochs or 1) * epoch_steps


FULL_WORK = Fraction(1)


def draw_stragglers(clients: Sequence[int], training: Training, seed: int, round_: int) -> set[int]:
    """Draw the clients of a round that do only part of their work.

    Each client has a random number by (seed, client, round); those with the smallest numbers are
    stragglers.

    Args:
        clients: The clients of the round.
        training: Settings of training, with the share of stragglers. If their work is dropped, at
            least one client is no straggler.
        seed: Seed of the run.
        round_: Number of the round.

    Returns:
        The stragglers.
    """
    count = round(training.stragglers * len(clients))
    if training.partial_work == "dropped":
        count = min(count, len(clients) - 1)
    if not count:
        return set()
    numbers = {k: rng.generator(seed, "straggler", k, round_).random() for k in clients}
    return set(sorted(clients, key=numbers.__getitem__)[:count])


def draw_work_shares(
    clients: Sequence[int], stragglers: set[int], training: Training, seed: int, round_: int
) -> list[Fraction]:
    """Draw the share of its work that each client of a round does, above 0 and up to 1.

    Args:
        clients: The clients of the round.
        stragglers: Those that do only part of their work.
        training: Settings of training.
        seed: Seed of the run.
        round_: Number of the round.

    Returns:
        The share of each client.
    """
    full_length = training.local_steps or training.local_epochs or 1

    def share(client: int) -> Fraction:
        generator = rng.generator(seed, "work of a straggler", client, round_)
        return Fraction(int(generator.integers(1, full_length + 1)), full_length)

    return [share(client) if client in stragglers else FULL_WORK for client in clients]


def shorten_training(training: Training, share: Fraction) -> Training:
    """Reduce the length of a pass to a share of it, rounded up to whole epochs or steps."""
    if share == FULL_WORK:
        return training
    if training.local_steps is not None:
        return replace(training, local_steps=math.ceil(training.local_steps * share))
    return replace(training, local_epochs=math.ceil((training.local_epochs or 1) * share))
