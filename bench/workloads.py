"""What the benchmarks of local training train: sizes and data, without any framework."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

CLASSES = 10
LR, MOMENTUM = 0.01, 0.9


@dataclass(frozen=True)
class Workload:
    """What is trained: ``samples`` of ``shape`` for each of ``clients``, for ``epochs`` a round.

    least: of how many the smallest client has, where they are not alike: sizes then rise evenly.
    weights: how many the network trains, which holds all that build it to one network. momentum: of
    its steps. pixels: whether inputs are bytes, as images are.
    """

    title: str
    clients: int
    samples: int
    shape: tuple[int, ...]
    batch: int
    epochs: int
    weights: int = 0
    least: int | None = None
    momentum: float = MOMENTUM
    pixels: bool = False

    @property
    def sizes(self) -> np.ndarray:
        """Samples of each client, whole batches where they are not alike."""
        if self.least is None:
            return np.full(self.clients, self.samples)
        ends = self.least // self.batch, self.samples // self.batch
        return self.batch * np.linspace(*ends, self.clients).astype(int)

    def steps(self, limit: int) -> int:
        """Steps of a client in a round, at most ``limit``; of several epochs, whole ones."""
        epoch = self.samples // self.batch
        return limit if limit <= epoch else min(limit // epoch, self.epochs) * epoch

    def draw(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs [samples of all clients, *shape] and labels, a client's in a row."""
        draw = np.random.default_rng(0)
        total = int(self.sizes.sum())
        y = draw.integers(0, CLASSES, total)
        if self.pixels:
            return draw.integers(0, 256, (total, *self.shape), dtype=np.uint8), y
        return draw.standard_normal((total, *self.shape), dtype=np.float32), y


WORKLOADS = {
    "W1": Workload(
        "8 clients x 5,000, 60-20-10 ReLU net, batch 10", 8, 5000, (60,), 10, 1, weights=1_430
    ),
    "W2": Workload(
        "10 clients x 5,000 of 3x32x32, LeNet, batch 64",
        *(10, 5000, (3, 32, 32), 64, 1),
        weights=62_006,
    ),
    "W3": Workload(
        "100 clients x 50 of 1x8x8, CNN 16-32 with batch normalisation, batch 10",
        *(100, 50, (1, 8, 8), 10, 5),
        weights=6_138,
    ),
    "W3-plain": Workload(
        "100 clients x 50 of 1x8x8, CNN 16-32 without batch normalisation, batch 10",
        *(100, 50, (1, 8, 8), 10, 5),
        weights=6_042,
    ),
    "W4": Workload(
        "10 clients of 8 to 30 steps on 64, 64-200-200-10 ReLU net, batch 16, plain SGD",
        *(10, 480, (64,), 16, 1),
        weights=55_210,
        least=128,
        momentum=0.0,
    ),
}
