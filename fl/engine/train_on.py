"""Option ``train_on``: clients train on some of their samples, or on virtual images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fl.api.method import REAL
from fl.base import rng
from fl.base.errors import FedloomError
from fl.engine.sample_arrays import Arrays
from fl.engine.simulation import Simulation


def train_on_subset(simulation: Simulation, count: int) -> Simulation:
    """Let every client train on ``count`` of its samples of every class, equal for all seeds.

    Args:
        simulation: The run.
        count: Samples of each class.

    Returns:
        The run with fewer training samples.

    Raises:
        FedloomError: If a client has fewer samples of a class.
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
                    f"train_on: is {count}, but client {client} has {len(of_class)} training "
                    f"samples of class {label}",
                    advice="set at most as many as every client has of every class",
                )
            numbers.append(of_class[:count])
        chosen.append(np.sort(np.concatenate(numbers)))
    return _replace_training_samples(simulation, chosen)


def train_on_images(simulation: Simulation, images: Tensor) -> Simulation:
    """Let every client train on its own virtual images, numbered after the data set's samples.

    Args:
        simulation: The run.
        images: The images, [clients, classes x count, ...], normalised and ordered by class.

    Returns:
        The run with other training samples.

    Raises:
        FedloomError: If the number of images does not fit clients and classes.
    """
    clients, count = images.shape[:2]
    if clients != simulation.client_data.clients or count % simulation.classes:
        raise FedloomError(
            f"train_on: there are {count} images for each of {clients} clients, but the run has "
            f"{simulation.client_data.clients} clients and {simulation.classes} classes",
            advice="use images of a run with the same partition, equally many of each class",
        )
    begin = simulation.arrays.size
    numbers = [np.arange(begin + k * count, begin + (k + 1) * count) for k in range(clients)]
    y = np.repeat(np.arange(simulation.classes), count // simulation.classes)
    arrays = _ExtendedArrays(simulation.arrays, images.flatten(0, 1), np.tile(y, clients))
    return _replace_training_samples(replace(simulation, arrays=arrays), numbers)


def _replace_training_samples(simulation: Simulation, samples: list[np.ndarray]) -> Simulation:
    """Replace the split ``train``; the original one becomes the split `REAL`."""
    by_split = simulation.client_data.samples
    new_splits = {**by_split, "train": samples, REAL: by_split["train"]}
    return replace(simulation, client_data=replace(simulation.client_data, samples=new_splits))


class _ExtendedArrays(Arrays):
    """Samples followed by images that are already normalised and never augmented."""

    def __init__(self, samples: Arrays, images: Tensor, labels: np.ndarray) -> None:
        self.__dict__.update(vars(samples))
        self._samples, self._images = samples, images.to(samples.device)
        y = torch.from_numpy(labels.astype(np.int64)).to(samples.device)
        sample_labels = samples.labels(torch.arange(samples.size, device=samples.device))
        self._y = torch.cat([sample_labels, y])

    def inputs(self, index: Tensor, key: Tensor | None = None) -> Tensor:
        """Return normalised inputs, see `Arrays.inputs`."""
        numbers, size = index.reshape(-1), self._samples.size
        is_image = numbers >= size
        keys = None if key is None else key.reshape(-1)
        x: Tensor = self._samples.inputs(torch.where(is_image, 0, numbers), keys)
        images = self._images[(numbers - size).clamp(min=0)].to(x.dtype)
        joined = torch.where(is_image.reshape(-1, *[1] * (x.dim() - 1)), images, x)
        return joined.reshape(*index.shape, *x.shape[1:])
