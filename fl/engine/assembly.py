"""Simulations from specs: data, partition, model and method of a run, ready to train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from fl.api.method import BuildContext, Method, MethodTerm, declaration_of
from fl.api.network import CONSTRUCTION_SEED, Network
from fl.api.task import Task
from fl.api.tasks.classification import CLASSIFICATION
from fl.api.training import Training
from fl.base.errors import DataError, FedloomError
from fl.base.seams import Seam
from fl.base.specs import Spec
from fl.data import partition_table
from fl.data.inputs import (
    Modality,
    fill_gaps,
    group_title,
    input_names,
    measure_normalisation,
    modality_groups,
)
from fl.data.tokens import rank_words
from fl.engine import modality_rounds, train_on
from fl.engine.client_data import TEST_OWN, ClientData
from fl.engine.sample_arrays import Arrays, SeveralArrays, augmentation_by_modality
from fl.engine.server_training import server_training
from fl.engine.simulation import TYPE_BY_PRECISION, Simulation
from fl.pytorch.adaptation import adapt
from fl.pytorch.construction import seeded

if TYPE_CHECKING:
    from fl.data.prepared import Prepared


@dataclass(frozen=True)
class RunComponents:
    """The objects that a run's spec names, and the task and the modalities of its data set."""

    model: Any
    method: MethodComponents
    task: Task = CLASSIFICATION
    modalities: tuple[Modality, ...] = ()


@dataclass(frozen=True)
class MethodComponents:
    """A method and what a study adds to it, as objects that have a ``build``.

    Attributes:
        method: The method.
        terms: Terms of its loss.
        alterations: Alterations of features.
        upload_filters: Filters that change what clients send, in the order in which they act.
        aggregation: At most one aggregation, which replaces the mean of uploads.
    """

    method: Any
    terms: tuple[Any, ...] = ()
    alterations: tuple[Any, ...] = ()
    upload_filters: tuple[Any, ...] = ()
    aggregation: tuple[Any, ...] = ()


METHOD_BUILT = Seam[Callable[[Method, BuildContext, MethodComponents], Method]]("method built")
"""Functions that wrap a finished method, and return another method or the same one."""


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
    classes, model_spec = len(prepared.classes), spec["model"]
    labels, training_samples = (
        _labels(prepared, components.task),
        partition_table.training_samples(table),
    )
    label_normalisation = prepared.normalisation_of(components.task.labels)
    if label_normalisation is not None and label_normalisation["mean"] is None:
        label_normalisation = measure_normalisation(labels[:, None], training_samples, 1.0)
    reader = _ArrayReader(prepared, labels, label_normalisation, training_samples, training, device)

    def simulation(make_module: MakeModule, arrays: Arrays, data: ClientData) -> Simulation:
        network = make_network(make_module, training)
        network.probe(arrays.inputs(torch.zeros(1, dtype=torch.int64, device=device)))
        return _simulation(components, network, training, arrays, data, classes, spec["seed"])

    shapes = {modality.name: modality.shape for modality in components.modalities}
    if data.modality is None:
        has_several_inputs = bool(input_names(components.model))
        arrays = reader.all_inputs(components.modalities) if has_several_inputs else reader.x
        shape = shapes if has_several_inputs else arrays.shape
        run = simulation(
            lambda: adapt(components.model.build(shape, classes), model_spec), arrays, data
        )
        count = spec.get("train_on")
        return train_on.train_on_subset(run, count) if isinstance(count, int) else run
    if spec.get("train_on") is not None:
        raise FedloomError(
            "train_on: is set, but clients differ in the modality of their inputs",
            advice="remove train_on, or choose a partition in which all clients have the same "
            "inputs",
        )

    def full_module() -> Any:
        return adapt(components.model.build(shapes, classes), model_spec)

    def group_module(group: Sequence[Modality]) -> nn.Module:
        model = full_module()
        module: nn.Module = model if len(group) > 1 else model.for_modality(group[0].name)
        return module

    by_modality = tuple(
        simulation(
            partial(group_module, group), reader.group_inputs(group), data.select_modality(number)
        )
        for number, group in enumerate(_modality_groups(components, data))
    )
    network = make_network(full_module, training)
    # No input passes through the whole network, so its last linear layers are not found that way.
    network.head = frozenset().union(*(run.network.head for run in by_modality))
    arrays = by_modality[0].arrays
    return _simulation(
        components, network, training, arrays, data, classes, spec["seed"], by_modality
    )


MakeModule = Callable[[], nn.Module]

NORMALISATIONS = {"half": {"mean": 0.5, "sd": 0.5}, "none": {"mean": 0.0, "sd": 1.0}}
"""Values of `normalisation` that replace the data set's own mean and deviation."""


@dataclass(frozen=True)
class _ArrayReader:
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
        return self._arrays("x", self.training.augmentation)

    def group_inputs(self, modalities: Sequence[Modality]) -> Arrays:
        """Return one of the inputs, or several as one."""
        if len(modalities) > 1:
            return self.all_inputs(modalities)
        [modality] = modalities
        augmentation = "none" if modality.tokens else self.training.augmentation
        return self._arrays(modality.array, augmentation)

    def all_inputs(self, modalities: Sequence[Modality]) -> Arrays:
        """Return several inputs as one, for clients that have all of them."""
        augmentations = augmentation_by_modality(modalities, self.training.augmentation)
        return SeveralArrays({m.name: self._arrays(m.array, augmentations[m]) for m in modalities})

    def _arrays(self, name: str, augmentation: str) -> Arrays:
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


def _simulation(
    components: RunComponents,
    network: Network,
    training: Training,
    arrays: Arrays,
    data: ClientData,
    classes: int,
    seed: int,
    by_modality: tuple[Simulation, ...] = (),
) -> Simulation:
    """Make a simulation; ``by_modality`` are the runs of single modalities, if clients differ."""
    context = BuildContext(
        *(network, training, classes, data.clients, arrays.shape, seed),
        absent_clients=len(data.absent_clients),
        task=components.task,
        shapes=arrays.shapes,
        tokens=frozenset(modality.name for modality in components.modalities if modality.tokens),
        missing_weights=tuple(
            modality_rounds.weight_names(network) - modality_rounds.weight_names(run.network)
            for run in by_modality
        ),
        # If clients differ in modality, the server trains in the run of each modality.
        server_training=None
        if by_modality
        else server_training(arrays, data, network, training, classes, seed),
    )
    method = build(components.method, context)
    if by_modality:
        names = map(group_title, _modality_groups(components, data))
        runs = [(run.method, run.network) for run in by_modality]
        separate = not declaration_of(components.method.method).modalities
        runs_by_name = dict(zip(names, runs, strict=True))
        method = modality_rounds.combine_methods(method, network, runs_by_name, separate)
    return Simulation(
        method=method,
        network=network,
        training=training,
        arrays=arrays,
        client_data=data,
        classes=classes,
        seed=seed,
        task=components.task,
        by_modality=by_modality,
    )


def _modality_groups(components: RunComponents, data: ClientData) -> list[tuple[Modality, ...]]:
    """Return the modalities that each group of clients has."""
    assert data.modality is not None
    return modality_groups(components.modalities, int(data.modality.max()) + 1)


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


def build(components: MethodComponents, context: BuildContext) -> Method:
    """Build a method with everything that the study adds to it.

    Args:
        components: The method and its additions.
        context: What they are built for.

    Returns:
        The method, with terms attached and wrapped by the hooks of `METHOD_BUILT`. Shared
        generators are seeded meanwhile, equally for all runs, which may be trained in one stack.
    """
    with seeded(CONSTRUCTION_SEED):
        return _build(components, context)


def _build(components: MethodComponents, context: BuildContext) -> Method:
    terms = tuple(term.build(context) for term in components.terms)
    alterations = tuple(alteration.build(context) for alteration in components.alterations)
    context_with_additions = replace(context, terms=terms, alterations=alterations)
    method: Method = components.method.build(context_with_additions)
    for term in terms:
        if isinstance(term, MethodTerm):
            method = term.attach(method)
    for wrap in METHOD_BUILT.hooks():
        method = wrap(method, context, components)
    return method


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


def with_seed(simulation: Simulation, spec: Spec, components: RunComponents) -> Simulation:
    """Make the simulation of a spec that differs from an existing one only in its seed.

    Args:
        simulation: The existing simulation, whose data are used.
        spec: The spec of the new one.
        components: The objects that the spec names.

    Returns:
        The simulation of the spec.
    """
    by_modality = tuple(with_seed(run, spec, components) for run in simulation.by_modality)
    return _simulation(
        components,
        simulation.network,
        simulation.training,
        simulation.arrays,
        simulation.client_data,
        simulation.classes,
        spec["seed"],
        by_modality,
    )
