"""Simulations from specs: data, partition, model and method of a run, ready to train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from fl.api.method import declaration_of
from fl.api.network import Network
from fl.api.task import Task
from fl.api.tasks.classification import CLASSIFICATION
from fl.api.training import WEIGHTS, Training
from fl.base.errors import DataError, FedloomError
from fl.base.seams import Seam
from fl.base.specs import Spec
from fl.data import partition_table
from fl.data.inputs import (
    Modality,
    fill_gaps,
    input_names,
    measure_normalisation,
    rank_words,
)
from fl.engine import train_on
from fl.engine.client_data import TEST_OWN, ClientData
from fl.engine.run_basis import MethodComponents, RunBasis
from fl.engine.sample_arrays import Arrays, SeveralArrays, augmentation_by_modality
from fl.engine.simulation import Simulation
from fl.pytorch.adaptation import adapt

if TYPE_CHECKING:
    from fl.data.prepared import Prepared


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
class ArrayReader:
    """Makes arrays of the inputs of a prepared data set.

    Attributes:
        prepared: The data set.
        labels: Its labels for the task.
        label_normalisation: Normalisation of targets; None for other labels.
        training_samples: Samples from which means and deviations are computed.
        training: Settings of training.
        device: The device of the arrays.
    """

    prepared: Prepared
    labels: np.ndarray
    label_normalisation: dict[str, Any] | None
    training_samples: np.ndarray
    training: Training
    device: torch.device

    @property
    def x(self) -> Arrays:
        """The first input."""
        return self.arrays("x", self.training.augmentation)

    def all_inputs(self, modalities: Sequence[Modality]) -> Arrays:
        """Return several inputs as one, for clients that have all of them."""
        augmentations = augmentation_by_modality(modalities, self.training.augmentation)
        return SeveralArrays({m.name: self.arrays(m.array, augmentations[m]) for m in modalities})

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


@dataclass(frozen=True)
class Assembly:
    """The parts from which the simulation of a run is assembled.

    Attributes:
        spec: The spec of the run.
        components: The objects that the spec names.
        table: The partition table.
        data: The samples of each client.
        reader: The inputs of the data set.
    """

    spec: Spec
    components: RunComponents
    table: pd.DataFrame
    data: ClientData
    reader: ArrayReader

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each of several inputs by name."""
        return {modality.name: modality.shape for modality in self.components.modalities}

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.reader.prepared.classes)

    def module(self, shape: Any) -> Any:
        """Return a new module of the run's model for inputs of a shape, or of several by name."""
        return adapt(self.components.model.build(shape, self.classes), self.spec["model"])

    def simulation(self, make_module: MakeModule, arrays: Arrays, data: ClientData) -> Simulation:
        """Make the simulation of a network with some inputs and clients."""
        network = make_network(make_module, self.reader.training)
        network.probe(arrays.inputs(torch.zeros(1, dtype=torch.int64, device=arrays.device)))
        basis = self.basis(network, arrays, data)
        return Simulation.of(self.components.method, basis, self.spec["seed"])

    def basis(self, network: Network, arrays: Arrays, data: ClientData) -> RunBasis:
        """Return what the run's method is built for, with a network, inputs and clients."""
        return RunBasis(
            network=network,
            training=self.reader.training,
            arrays=arrays,
            client_data=data,
            classes=self.classes,
            task=self.components.task,
            modalities=self.components.modalities,
        )


ASSEMBLERS = Seam[Callable[[Assembly], Simulation | None]]("assemblers")
"""Functions that make simulations of runs which the core cannot make; None for other runs."""


def assemble(
    spec: Spec,
    components: RunComponents,
    prepared: Prepared,
    table: pd.DataFrame,
    device: torch.device,
) -> Simulation:
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
    labels, training_samples = (
        _labels(prepared, components.task),
        partition_table.training_samples(table),
    )
    label_normalisation = prepared.normalisation_of(components.task.labels)
    if label_normalisation is not None and label_normalisation["mean"] is None:
        label_normalisation = measure_normalisation(labels[:, None], training_samples, 1.0)
    reader = ArrayReader(prepared, labels, label_normalisation, training_samples, training, device)
    assembly = Assembly(spec, components, table, data, reader)
    for assemble_run in ASSEMBLERS.hooks():
        if (run := assemble_run(assembly)) is not None:
            return run
    has_several_inputs = bool(input_names(components.model))
    arrays = reader.all_inputs(components.modalities) if has_several_inputs else reader.x
    shape = assembly.shapes if has_several_inputs else arrays.shape
    run = assembly.simulation(lambda: assembly.module(shape), arrays, data)
    count = spec.get("train_on")
    return train_on.train_on_subset(run, count) if isinstance(count, int) else run


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
