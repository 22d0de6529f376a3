"""Simulations from specs: data, partition, model and method of a run, ready to train.

With the option ``train_on``, clients train on some of their samples, or on virtual images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fl.api.method import REAL, declaration_of
from fl.api.network import Network
from fl.api.task import Task
from fl.api.tasks.classification import CLASSIFICATION
from fl.api.training import WEIGHTS, Training
from fl.base import rng
from fl.base.errors import DataError, FedloomError
from fl.base.specs import Spec
from fl.data import partition_table
from fl.data.dataset import Modality, input_names
from fl.data.normalisation import fill_gaps, measure_normalisation, rank_words
from fl.engine import sample_arrays
from fl.engine.client_data import TEST_OWN, ClientData
from fl.engine.run_setup import MethodComponents, RunSetup
from fl.engine.sample_arrays import Arrays, SeveralArrays, augmentation_by_modality
from fl.engine.simulation import Simulation, Trainable
from fl.pytorch.construction import adapt

if TYPE_CHECKING:
    from fl.data.prepared import Prepared
    from fl.engine.modality_simulation import ModalitySimulation


MakeModule = Callable[[], nn.Module]

TYPE_BY_PRECISION: dict[str, torch.dtype] = {
    precision: getattr(torch, name) for precision, name in WEIGHTS.items()
}

NORMALISATIONS = {"half": {"mean": 0.5, "sd": 0.5}, "none": {"mean": 0.0, "sd": 1.0}}
"""Values of `normalisation` that replace the data set's own mean and deviation."""


@dataclass(frozen=True)
class RunComponents:
    """The objects that a run's spec names, and the task and the modalities of its data set."""

    model: Any
    method: MethodComponents
    task: Task = CLASSIFICATION
    modalities: tuple[Modality, ...] = ()


@dataclass(frozen=True)
class Assembly:
    """The parts from which the simulation of a run is assembled.

    Attributes:
        spec: The spec of the run.
        components: The objects that the spec names.
        prepared: The data set.
        data: The samples of each client.
        training: Settings of training.
        labels: Labels of the data set for the task.
        label_normalisation: Normalisation of targets; None for other labels.
        training_samples: Samples from which means and deviations are computed.
        device: The device on which the run is trained.
    """

    spec: Spec
    components: RunComponents
    prepared: Prepared
    data: ClientData
    training: Training
    labels: np.ndarray
    label_normalisation: dict[str, Any] | None
    training_samples: np.ndarray
    device: torch.device

    def arrays(self, name: str, augmentation: str) -> Arrays:
        """Return the inputs of an array of the data set."""
        normalisation = self.prepared.normalisation_of(name)
        if normalisation is not None and self.training.normalisation in NORMALISATIONS:
            normalisation = {**normalisation, **NORMALISATIONS[self.training.normalisation]}
        x = self.prepared.array(name)
        if name == "x" and self.prepared.vocabulary:
            words, size = len(self.prepared.words), self.prepared.vocabulary
            x = rank_words(x, self.training_samples, words, size)
        if normalisation is not None and normalisation.get("missing") == "mean":
            x = fill_gaps(x, self.training_samples)
        if normalisation is not None and normalisation["mean"] is None:
            normalisation = measure_normalisation(x, self.training_samples, normalisation["scale"])
        return Arrays(
            x,
            self.labels,
            normalisation,
            self.device,
            TYPE_BY_PRECISION[self.training.precision],
            augmentation=augmentation,
            label_normalisation=self.label_normalisation,
        )

    def all_inputs(self, modalities: Sequence[Modality]) -> Arrays:
        """Return several inputs as one, for clients that have all of them."""
        augmentations = augmentation_by_modality(modalities, self.training.augmentation)
        return SeveralArrays({m.name: self.arrays(m.array, augmentations[m]) for m in modalities})

    def inputs_of(self, group: Sequence[Modality]) -> Arrays:
        """Return the inputs of clients that have these modalities: one, or several as one."""
        if len(group) > 1:
            return self.all_inputs(group)
        return self.arrays(
            group[0].array, "none" if group[0].tokens else self.training.augmentation
        )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each of several inputs by name."""
        return {modality.name: modality.shape for modality in self.components.modalities}

    def module(self, shape: Any) -> Any:
        """Return a new module of the run's model for inputs of a shape, or of several by name."""
        module = self.components.model.build(shape, len(self.prepared.classes))
        return adapt(module, self.spec["model"])

    def simulation(self, make_module: MakeModule, arrays: Arrays, data: ClientData) -> Simulation:
        """Make the simulation of a network with some inputs and clients."""
        network = make_network(make_module, self.training)
        network.probe(arrays.inputs(torch.zeros(1, dtype=torch.int64, device=arrays.device)))
        setup = self.setup(network, arrays, data)
        return Simulation.of(self.components.method, setup, self.spec["seed"])

    def setup(self, network: Network, arrays: Arrays, data: ClientData) -> RunSetup:
        """Return what the run's method is built for, with a network, inputs and clients."""
        return RunSetup(
            network=network,
            training=self.training,
            arrays=arrays,
            client_data=data,
            classes=len(self.prepared.classes),
            task=self.components.task,
            modalities=self.components.modalities,
        )


def assemble(
    spec: Spec,
    components: RunComponents,
    prepared: Prepared,
    table: pd.DataFrame,
    device: torch.device,
) -> Simulation | ModalitySimulation:
    """Make the simulation that a run's spec describes.

    Args:
        spec: The spec of the run.
        components: The objects that the spec names.
        prepared: The data set.
        table: The partition table.
        device: The device on which the run is trained.

    Returns:
        The simulation.

    Raises:
        FedloomError: If components and data do not fit together.
    """
    training = Training(**spec["training"])
    method = components.method.method
    # Clients that learn nothing from others can train if they are unseen, so they personalise.
    unseen_take_part = declaration_of(method).independent
    data = ClientData.from_table(table, spec.get("test", TEST_OWN), unseen_take_part)
    check_validation_samples(method, data)
    check_server_samples(method, data)
    labels = _labels(prepared, components.task)
    training_samples = partition_table.training_samples(table)
    label_normalisation = prepared.normalisation_of(components.task.labels)
    if label_normalisation is not None and label_normalisation["mean"] is None:
        label_normalisation = measure_normalisation(labels[:, None], training_samples, 1.0)
    assembly = Assembly(
        spec,
        components,
        prepared,
        data,
        training,
        labels,
        label_normalisation,
        training_samples,
        device,
    )
    if partition_table.MODALITY in table:
        by_client = table.groupby("client")[partition_table.MODALITY].first()
        return _assemble_modalities(assembly, by_client.to_numpy(np.int64))
    if input_names(components.model):
        arrays = assembly.all_inputs(components.modalities)
        shape: Any = assembly.shapes
    else:
        arrays = assembly.arrays("x", training.augmentation)
        shape = arrays.shape
    run = assembly.simulation(lambda: assembly.module(shape), arrays, data)
    count = spec.get("train_on")
    run = train_on_subset(run, count) if isinstance(count, int) else run
    return complete(run, components.method)


def complete(run: Simulation, components: MethodComponents) -> Simulation:
    """Return a run with the devices, selection and asynchronous server that its study adds.

    Args:
        run: The run, with all samples on which it trains.
        components: Its method, and what the study adds to it.

    Raises:
        FedloomError: If they do not fit to each other or to the method.
    """
    training, keys = run.training, {"devices", "selection", "asynchronous"}
    is_timed = training.over_selection > 1 or training.deadline is not None
    if not (is_timed or components.added_keys & keys):
        return run
    from fl.engine.participation_setup import attach_participation  # Few runs have any.

    return attach_participation(run, components)


def sibling(run: Trainable, components: MethodComponents, seed: int) -> Trainable:
    """Make another run on the same data as a run, with its own method and seed.

    Args:
        run: The run.
        components: The method of the other one, and what its study adds to it.
        seed: Seed of the other one.
    """
    if isinstance(run, Simulation):
        return complete(Simulation.of(components, run, seed), components)
    from fl.engine.modality_simulation import ModalitySimulation

    assert isinstance(run, ModalitySimulation)
    by_modality = tuple(Simulation.of(components, own, seed) for own in run.by_modality)
    return ModalitySimulation.of(components, run.joint, seed, run.modality, by_modality)


def join_draws(runs: Mapping[str, Trainable]) -> dict[str, Trainable]:
    """Return runs that differ in seed and draw with common samples, as far as one stack can be.

    Args:
        runs: The runs.
    """
    forms: dict[str, tuple[int, ...]] = {}
    for key, run in runs.items():
        if isinstance(run, Simulation):
            data = run.client_data
            forms[key] = data.clients, len(data.absent_clients), run.classes
    joined = dict(runs)
    for form in {*forms.values()}:
        alike = {key: run for key, run in runs.items() if forms.get(key) == form}
        draws = [*{run.arrays: None for run in alike.values() if isinstance(run, Simulation)}]
        parts = dict(zip(draws, sample_arrays.join_draws(draws), strict=True))
        for key, run in alike.items():
            assert isinstance(run, Simulation)
            joined[key] = replace(run, arrays=parts[run.arrays])
    return joined


def stack_of(run: Trainable) -> Arrays | None:
    """Return the samples that runs share which may be in one stack; None if any may."""
    return run.arrays.whole if isinstance(run, Simulation) else None


def _assemble_modalities(assembly: Assembly, modality: np.ndarray) -> ModalitySimulation:
    """Make the simulation of a run whose clients differ in modality, int64 [clients].

    Raises:
        FedloomError: If clients are to train on some of their samples, or on virtual images.
    """
    from fl.engine.modality_simulation import ModalitySimulation, groups_of  # Few runs need it.

    if assembly.spec.get("train_on") is not None:
        raise FedloomError(
            "train_on: is set, but clients differ in the modality of their inputs",
            advice="remove train_on, or choose a partition in which all clients have the same "
            "inputs",
        )
    data, components = assembly.data, assembly.components
    for key in sorted(components.method.added_keys & {"devices", "selection", "asynchronous"}):
        raise FedloomError(f"{key}: is set, but clients differ in modality", advice="leave it out")

    def group_module(group: Sequence[Modality]) -> nn.Module:
        model = assembly.module(assembly.shapes)
        module: nn.Module = model if len(group) > 1 else model.for_modality(group[0].name)
        return module

    by_modality = tuple(
        assembly.simulation(
            partial(group_module, group),
            assembly.inputs_of(group),
            data.select_clients(np.flatnonzero(modality == number)),
        )
        for number, group in enumerate(groups_of(components.modalities, modality))
    )
    network = make_network(lambda: assembly.module(assembly.shapes), assembly.training)
    # No input passes through the whole network, so its last linear layers are not found that way.
    network.head = frozenset().union(*(run.network.head for run in by_modality))
    setup = assembly.setup(network, by_modality[0].arrays, data)
    return ModalitySimulation.of(
        components.method, setup, assembly.spec["seed"], modality, by_modality
    )


def check_validation_samples(method: Any, data: ClientData) -> None:
    """Refuse clients without validation samples if a method learns from these.

    Args:
        method: The component of the method.
        data: The samples of each client.

    Raises:
        FedloomError: If a participant has no validation samples.
    """
    if not declaration_of(method).needs_validation:
        return
    clients = [int(k) for k in data.participants if not len(data.samples_of("val", int(k)))]
    if clients:
        shown = ", ".join(map(str, clients[:5])) + (", ..." if len(clients) > 5 else "")
        raise FedloomError(
            f"{declaration_of(method).title}: needs validation samples, but {len(clients)} of "
            f"{len(data.participants)} clients have none ({shown})",
            advice="set min_samples or a larger val in the partition",
        )


def check_server_samples(method: Any, data: ClientData) -> None:
    """Refuse a server without samples if a method trains on these.

    Args:
        method: The component of the method.
        data: The samples of each client and of the server.

    Raises:
        FedloomError: If the server has no samples.
    """
    if declaration_of(method).needs_server_data and not len(data.server):
        raise FedloomError(
            f"{declaration_of(method).title}: trains on the server, but the server has no samples",
            advice="set a larger share for the server, `server`, in the partition",
        )


def make_network(make_module: MakeModule, training: Training) -> Network:
    """Make a network with the precision and memory format of the training settings."""
    return Network(
        make_module,
        TYPE_BY_PRECISION[training.precision],
        mixed=training.precision == "mixed",
        channels_last=training.memory_format == "channels-last",
    )


def _labels(prepared: Prepared, task: Task) -> np.ndarray:
    """Return labels of the task: classes or targets [samples], or masks [samples, h, w]."""
    labels: np.ndarray | None = getattr(prepared, task.labels)
    if labels is None:
        raise DataError(
            f"{prepared.folder}: has no {task.label_name}, which {task.name} needs",
            advice=f"choose a data set for {task.name}",
        )
    return labels


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
        labels = simulation.arrays.labels_of(samples)
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
