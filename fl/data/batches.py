"""Which samples a client sees at which step, and how they become tensors.

The order is keyed by (seed, client, round). Every batch is full: what the last batch of an epoch
lacks is filled up with other samples of the same client that weigh nothing in the loss, so that
batch statistics are always over `batch_size` samples and stacks of clients keep one shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl import rng
from fl.training import Training


@dataclass(frozen=True)
class Schedule:
    """The batches of a round, for K clients of which the longest takes S steps.

    index: sample numbers, int64 [K, S, b]; weight: loss weights, bool [K, S, b];
    steps: how many of the S each client takes, int64 [K]. Rows past that are zeros.
    """

    index: np.ndarray
    weight: np.ndarray
    steps: np.ndarray


def schedule(
    samples: Sequence[np.ndarray],
    clients: Sequence[int],
    training: Training,
    seed: int,
    round_: int,
    purpose: str = "batches",
) -> Schedule:
    """The batches of one round; ``samples[i]`` are the training samples of ``clients[i]``."""
    drawn = [
        _client_batches(held, training, rng.generator(seed, purpose, client, round_))
        for held, client in zip(samples, clients, strict=True)
    ]
    steps = np.array([len(index) for index, _ in drawn])
    shape = (len(drawn), int(steps.max()), training.batch_size)
    index, weight = np.zeros(shape, np.int64), np.zeros(shape, bool)
    for row, (i, w) in enumerate(drawn):
        index[row, : len(i)], weight[row, : len(i)] = i, w
    return Schedule(index, weight, steps)


def _client_batches(
    held: np.ndarray, training: Training, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    epochs = [_epoch(held, training, draw) for _ in range(training.local_epochs or 1)]
    if training.local_steps is not None:
        while sum(len(index) for index, _ in epochs) < training.local_steps:
            epochs.append(_epoch(held, training, draw))
    index = np.concatenate([i for i, _ in epochs])[: training.local_steps]
    return index, np.concatenate([w for _, w in epochs])[: training.local_steps]


def _epoch(
    held: np.ndarray, training: Training, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    order, size = draw.permutation(held), training.batch_size
    if training.drop_last and len(order) > size:
        order = order[: len(order) // size * size]
    steps = -(-len(order) // size)
    index = np.resize(order, steps * size)
    weight = np.arange(steps * size) < len(order)
    return index.reshape(steps, size), weight.reshape(steps, size)


class Arrays:
    """The samples of a data set, ready to be gathered into batches on a device.

    ``x`` and ``y`` may be memory maps. Sets of up to ``resident`` bytes are copied to the device
    once; larger ones are gathered batch by batch. Inputs become
    ``(x * scale - mean) / sd`` in the run's precision, scale, mean and sd per channel or one each;
    without a normalisation they are tokens, which stay whole numbers (int64).
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        normalisation: Mapping[str, Any] | None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        resident: int = 2**31,
    ) -> None:
        self.device, self._dtype = torch.device(device), dtype
        self._affine = None
        if normalisation is not None:
            self._affine = _affine(normalisation, x.ndim - 2, self.device, dtype)
        self._y = torch.from_numpy(np.array(y, dtype=np.int64)).to(self.device)
        self._x: Tensor | None = None
        self._map = x
        if x.nbytes <= resident:
            self._x = torch.from_numpy(np.array(x)).to(self.device)

    def inputs(self, index: Tensor) -> Tensor:
        """Inputs as the model sees them, [*index.shape, ...], for a tensor of sample numbers."""
        flat = index.reshape(-1)
        if self._x is not None:
            raw = self._x[flat]
        else:
            raw = torch.from_numpy(self._map[flat.cpu().numpy()]).to(self.device)
        return self._normalised(raw).reshape(*index.shape, *raw.shape[1:])

    def _normalised(self, raw: Tensor) -> Tensor:
        if self._affine is None:
            return raw.to(torch.int64)
        factor, offset = self._affine
        return raw.to(self._dtype) * factor + offset

    def labels(self, index: Tensor) -> Tensor:
        """Labels, of the shape of ``index``."""
        return self._y[index]

    def batch(self, index: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """The batch at ``index`` [..., b], see `fl.method.Batch`."""
        return {
            "x": self.inputs(index),
            "y": self.labels(index),
            "weight": weight.to(self._dtype),
        }


def _affine(
    normalisation: Mapping[str, Any], trailing: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """x * scale / sd - mean / sd, per channel of inputs [N, channels, ...] or for all alike."""
    scale, mean, sd = (
        torch.tensor(normalisation[key], dtype=torch.float64) for key in ("scale", "mean", "sd")
    )
    return tuple(
        (t.reshape(-1, *[1] * trailing) if t.dim() else t).to(device, dtype)
        for t in (scale / sd, -mean / sd)
    )  # type: ignore[return-value]
