"""From a run's spec to its simulation: data, partition, model and method, ready to train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from fl.api.method import BuildContext, Method, MethodTerm, declaration_of
from fl.api.network import Network
from fl.api.task import Task
from fl.api.tasks.classification import CLASSIFICATION
from fl.api.training import Training
from fl.base.errors import DataError, FedloomError
from fl.base.seams import Seam
from fl.data import partition_table
from fl.data.inputs import (
    Modality,
    fill_gaps,
    group_title,
    input_names,
    measure_normalisation,
    modality_groups,
)
from fl.engine import modality, train_on
from fl.engine.arrays import Arrays, SeveralArrays, augmented
from fl.engine.client_data import OWN, ClientData
from fl.engine.serving import serving
from fl.engine.simulation import DTYPES, Simulation

if TYPE_CHECKING:
    from fl.data.prepared import Prepared

Spec = Mapping[str, Any]


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
    spec: Spec, parts: RunComponents, prepared: Prepared, table: pd.DataFrame, device: torch.device
) -> Simulation:
    """The simulation that a run's spec describes, on a data set and its partition."""
    training = Training(**spec["training"])
    # Who learns nothing from others may train where nobody else does: unseen clients personalise.
    alone = declaration_of(parts.method.method).independent
    data = ClientData.of(table, spec.get("test", OWN), alone)
    check_validated(parts.method.method, data)
    check_served(parts.method.method, data)
    classes = len(prepared.classes)
    labels = _labels(prepared, parts.task)
    arrays_of = _Reader(prepared, labels, partition_table.training_samples(table), training, device)

    def simulation(make: Make, arrays: Arrays, data: ClientData) -> Simulation:
        network = computing(make, training)
        network.probe(arrays.inputs(torch.zeros(1, dtype=torch.int64, device=device)))
        return _simulation(parts, network, training, arrays, data, classes, spec["seed"])

    shapes = {kind.name: kind.shape for kind in parts.modalities}
    if data.modality is None:
        several = bool(input_names(parts.model))
        arrays = arrays_of.all(parts.modalities) if several else arrays_of.x
        shape = shapes if several else arrays.shape
        made = simulation(lambda: parts.model.build(shape, classes), arrays, data)
        count = spec.get("train_on")
        return train_on.some(made, count) if isinstance(count, int) else made
    if spec.get("train_on") is not None:
        raise FedloomError("train_on: is set. Allowed: where all clients have the same inputs")

    def whole() -> Any:
        return parts.model.build(shapes, classes)

    def module_of(group: Sequence[Modality]) -> nn.Module:
        module: nn.Module = whole() if len(group) > 1 else whole().for_modality(group[0].name)
        return module

    by_modality = tuple(
        simulation(partial(module_of, group), arrays_of.group(group), data.of_modality(number))
        for number, group in enumerate(_groups(parts, data))
    )
    network = computing(whole, training)
    # No single pass goes through it, so its heads cannot be found as its last linear layer.
    network.head = frozenset().union(*(alone.network.head for alone in by_modality))
    return _simulation(
        parts, network, training, by_modality[0].arrays, data, classes, spec["seed"], by_modality
    )


Make = Callable[[], nn.Module]

NORMALISATIONS = {"half": {"mean": 0.5, "sd": 0.5}, "none": {"mean": 0.0, "sd": 1.0}}
"""In place of the data set's own."""


@dataclass(frozen=True)
class _Reader:
    """What makes arrays of a prepared data set's inputs."""

    prepared: Prepared
    labels: np.ndarray
    trained: np.ndarray
    training: Training
    device: torch.device

    @property
    def x(self) -> Arrays:
        """Of its first input."""
        return self._arrays("x", self.training.augmentation)

    def group(self, kinds: Sequence[Modality]) -> Arrays:
        """Of one of its inputs, or of several."""
        if len(kinds) > 1:
            return self.all(kinds)
        [kind] = kinds
        return self._arrays(kind.array, "none" if kind.tokens else self.training.augmentation)

    def all(self, kinds: Sequence[Modality]) -> Arrays:
        """Of several inputs, for clients that have all of them."""
        chosen = augmented(kinds, self.training.augmentation)
        return SeveralArrays({kind.name: self._arrays(kind.array, chosen[kind]) for kind in kinds})

    def _arrays(self, name: str, augmentation: str) -> Arrays:
        normalisation = self.prepared.normalisation_of(name)
        if normalisation is not None and self.training.normalisation in NORMALISATIONS:
            normalisation = {**normalisation, **NORMALISATIONS[self.training.normalisation]}
        x = self.prepared.array(name)
        if normalisation is not None and normalisation.get("missing") == "mean":
            x = fill_gaps(x, self.trained)
        if normalisation is not None and normalisation["mean"] is None:
            normalisation = measure_normalisation(x, self.trained, normalisation["scale"])
        return Arrays(
            x,
            self.labels,
            normalisation,
            self.device,
            DTYPES[self.training.precision],
            augmentation=augmentation,
        )


def _simulation(
    parts: RunComponents,
    network: Network,
    training: Training,
    arrays: Arrays,
    data: ClientData,
    classes: int,
    seed: int,
    by_modality: tuple[Simulation, ...] = (),
) -> Simulation:
    """The simulation made of its parts.

    Args:
        by_modality: The simulation of each modality, for the method that trains all of them.
    """
    context = BuildContext(
        *(network, training, classes, data.clients, arrays.shape, seed),
        absent_clients=len(data.away),
        task=parts.task,
        shapes=arrays.shapes,
        tokens=frozenset(kind.name for kind in parts.modalities if kind.tokens),
        missing_weights=tuple(
            modality.weights(network) - modality.weights(run.network) for run in by_modality
        ),
        # Where clients differ in modality, the server trains in that of each alone.
        server_training=None
        if by_modality
        else serving(arrays, data, network, training, classes, seed),
    )
    method = build(parts.method, context)
    if by_modality:
        names = map(group_title, _groups(parts, data))
        apart = not declaration_of(parts.method.method).modalities
        alone = [(run.method, run.network) for run in by_modality]
        method = modality.several(method, network, dict(zip(names, alone, strict=True)), apart)
    return Simulation(
        method=method,
        network=network,
        training=training,
        arrays=arrays,
        client_data=data,
        classes=classes,
        seed=seed,
        task=parts.task,
        by_modality=by_modality,
    )


def _groups(parts: RunComponents, data: ClientData) -> list[tuple[Modality, ...]]:
    """What the clients of each modality hold, where they differ in it."""
    assert data.modality is not None
    return modality_groups(parts.modalities, int(data.modality.max()) + 1)


def check_validated(method: Any, data: ClientData) -> None:
    """Refuse (`FedloomError`) clients without validation samples where a method learns by them."""
    if not declaration_of(method).needs_validation:
        return
    lacking = [int(k) for k in data.participants if not len(data.of_splits("val", int(k)))]
    if lacking:
        shown = ", ".join(map(str, lacking[:5])) + (", ..." if len(lacking) > 5 else "")
        raise FedloomError(
            f"{declaration_of(method).title}: no validation samples at {len(lacking)} of "
            f"{len(data.participants)} clients ({shown}). Allowed: a partition with a val in which "
            "every client that takes part has some (min_samples, or a larger val)"
        )


def check_served(method: Any, data: ClientData) -> None:
    """Refuse (`FedloomError`) a server without samples where a method trains on it."""
    if declaration_of(method).needs_server_data and not len(data.server):
        raise FedloomError(
            f"{declaration_of(method).title}: the server has no samples. Try: a partition with a "
            "larger share for the server, `server`"
        )


def build(components: MethodComponents, context: BuildContext) -> Method:
    """Build a method with everything that the study adds to it.

    Args:
        components: The method and its additions.
        context: What they are built for.

    Returns:
        The method, with terms attached and wrapped by the hooks of `METHOD_BUILT`.
    """
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


def computing(make: Callable[[], nn.Module], training: Training) -> Network:
    """A network that computes as the training settings say."""
    return Network(
        make,
        DTYPES[training.precision],
        mixed=training.precision == "mixed",
        channels_last=training.memory_format == "channels-last",
    )


def _labels(prepared: Prepared, task: Task) -> np.ndarray:
    """The labels of the task: classes [samples], or masks [samples, height, width]."""
    labels: np.ndarray | None = getattr(prepared, task.labels)
    if labels is None:
        raise DataError(
            f"{prepared.folder}: has no {task.label_name}. Allowed: a data set for {task.name}"
        )
    return labels


def reseeded(like: Simulation, spec: Spec, parts: RunComponents) -> Simulation:
    """The simulation of a spec that differs from that of ``like`` only in its seed, on the same
    data.
    """
    by_modality = tuple(reseeded(run, spec, parts) for run in like.by_modality)
    return _simulation(
        *(parts, like.network, like.training, like.arrays, like.client_data, like.classes),
        spec["seed"],
        by_modality,
    )
