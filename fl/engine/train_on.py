"""What clients train on instead of all of their samples: some of them, or virtual images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl.api.method import REAL
from fl.base import rng
from fl.base.errors import FedloomError
from fl.engine.arrays import Arrays
from fl.engine.simulation import Simulation


def some(simulation: Simulation, count: int) -> Simulation:
    """Every client trains on ``count`` of its samples of every class, the same for all seeds.

    Raises:
        FedloomError: If a client has fewer of a class.
    """
    chosen = []
    for client, samples in enumerate(simulation.client_data.samples["train"]):
        labels = simulation.arrays.labels(torch.from_numpy(samples)).cpu().numpy()
        order = rng.generator(0, "train on some", client).permutation(len(samples))
        numbers = []
        for label in range(simulation.classes):
            of_class = samples[order[labels[order] == label]]
            if len(of_class) < count and client in simulation.client_data.participants:
                raise FedloomError(
                    f"train_on: is {count}, and client {client} has {len(of_class)} training "
                    f"samples of class {label}. Allowed: as many as every client has of every class"
                )
            numbers.append(of_class[:count])
        chosen.append(np.sort(np.concatenate(numbers)))
    return _training_on(simulation, chosen)


def images(simulation: Simulation, given: Tensor) -> Simulation:
    """Every client trains on virtual images of its own, which come after the data set's samples.

    Args:
        given: The images, [clients, classes x count, ...], normalised and ordered by class.
    """
    clients, count = given.shape[:2]
    if clients != simulation.client_data.clients or count % simulation.classes:
        raise FedloomError(
            f"train_on: there are {count} images for each of {clients} clients. Allowed: as many "
            f"of each of {simulation.classes} classes for {simulation.client_data.clients} clients"
        )
    begin = simulation.arrays.size
    numbers = [np.arange(begin + k * count, begin + (k + 1) * count) for k in range(clients)]
    y = np.repeat(np.arange(simulation.classes), count // simulation.classes)
    arrays = _Extended(simulation.arrays, given.flatten(0, 1), np.tile(y, clients))
    return _training_on(replace(simulation, arrays=arrays), numbers)


def _training_on(simulation: Simulation, samples: list[np.ndarray]) -> Simulation:
    before = simulation.client_data.samples
    by_split = {**before, "train": samples, REAL: before["train"]}
    return replace(simulation, client_data=replace(simulation.client_data, samples=by_split))


class _Extended(Arrays):
    """Samples followed by images, which are normalised already and never augmented."""

    def __init__(self, first: Arrays, more: Tensor, labels: np.ndarray) -> None:
        self.__dict__.update(vars(first))
        self._first, self._more = first, more.to(first.device)
        y = torch.from_numpy(labels.astype(np.int64)).to(first.device)
        self._y = torch.cat([first.labels(torch.arange(first.size, device=first.device)), y])

    def inputs(self, index: Tensor, key: Tensor | None = None) -> Tensor:
        """As `inputs` of the samples that are extended."""
        flat, size = index.reshape(-1), self._first.size
        added = flat >= size
        keys: Any = None if key is None else key.reshape(-1)
        x = self._first.inputs(torch.where(added, 0, flat), keys)
        more = self._more[(flat - size).clamp(min=0)].to(x.dtype)
        joined = torch.where(added.reshape(-1, *[1] * (x.dim() - 1)), more, x)
        return joined.reshape(*index.shape, *x.shape[1:])
