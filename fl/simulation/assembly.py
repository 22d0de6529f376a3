"""From a run's spec to its simulation: data, partition, model and method, ready to train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from fl.data.batches import Arrays
from fl.data.modality import Modality
from fl.errors import DataError, FedloomError
from fl.method import Attached, Method, Setting, declared
from fl.network import Network
from fl.simulation import modal, train_on
from fl.simulation.evaluate import OWN, Held
from fl.simulation.simulate import DTYPES, Simulation
from fl.task import Task
from fl.tasks.classification import CLASSIFICATION
from fl.training import Training

if TYPE_CHECKING:
    from fl.data.prepared import Prepared

Spec = Mapping[str, Any]


@dataclass(frozen=True)
class Parts:
    """The objects that a run's spec names, and the task and the modalities of its data set."""

    model: Any
    method: Composed
    task: Task = CLASSIFICATION
    modalities: tuple[Modality, ...] = ()


@dataclass(frozen=True)
class Composed:
    """A method, and what a study adds to it: terms of its loss, and alterations of features."""

    method: Any
    terms: tuple[Any, ...] = ()
    alterations: tuple[Any, ...] = ()


def assemble(
    spec: Spec, parts: Parts, prepared: Prepared, table: pd.DataFrame, device: torch.device
) -> Simulation:
    """The simulation that a run's spec describes, on a data set and its partition."""
    training = Training(**spec["training"])
    # Who learns nothing from others may train where nobody else does: unseen clients personalise.
    alone = declared(parts.method.method).alone
    held = Held.of(table, spec.get("test", OWN), alone)
    check_validated(parts.method.method, held)
    classes, labels = len(prepared.classes), _labels(prepared, parts.task)
    dtype, normalisation = DTYPES[training.precision], _normalisation(prepared, training)

    def simulation(make: Make, kind: Modality, held: Held) -> Simulation:
        network = computing(make, training)
        x = getattr(prepared, kind.array)
        arrays = Arrays(
            *(x, labels, None if kind.tokens else normalisation, device, dtype),
            augmentation=training.augmentation,
        )
        network.probe(arrays.inputs(torch.zeros(1, dtype=torch.int64, device=device)))
        seed = spec["seed"]
        return _simulation(parts, network, training, arrays, held, classes, seed)

    if held.modality is None:
        only = Modality("x", "x", prepared.x.shape[1:])
        made = simulation(lambda: parts.model.build(only.shape, classes), only, held)
        count = spec.get("train_on")
        return train_on.some(made, count) if isinstance(count, int) else made
    if spec.get("train_on") is not None:
        raise FedloomError("train_on: is set; allowed: on data with one kind of input")
    shapes = {kind.name: kind.shape for kind in parts.modalities}

    def whole() -> Any:
        return parts.model.build(shapes, classes)

    def one(name: str) -> nn.Module:
        found: nn.Module = whole().of(name)
        return found

    modals = tuple(
        simulation(partial(one, kind.name), kind, held.of_modality(number))
        for number, kind in enumerate(parts.modalities)
    )
    network = modal.together(computing(whole, training), [alone.network for alone in modals])
    return _simulation(
        parts, network, training, modals[0].arrays, held, classes, spec["seed"], modals
    )


Make = Callable[[], nn.Module]


def _simulation(
    parts: Parts,
    network: Network,
    training: Training,
    arrays: Arrays,
    held: Held,
    classes: int,
    seed: int,
    modals: tuple[Simulation, ...] = (),
) -> Simulation:
    """The simulation made of its parts.

    Args:
        modals: The simulation of each modality, for the method that trains all of them.
    """
    setting = Setting(
        *(network, training, classes, held.clients, arrays.shape, seed),
        away=len(held.away),
        task=parts.task,
    )
    method = build(parts.method, setting)
    if modals:
        names = [kind.name for kind in parts.modalities]
        apart = not declared(parts.method.method).modalities
        alone = [(one.method, one.network) for one in modals]
        method = modal.several(method, network, dict(zip(names, alone, strict=True)), apart)
    return Simulation(
        method=method,
        network=network,
        training=training,
        arrays=arrays,
        held=held,
        classes=classes,
        seed=seed,
        task=parts.task,
        modals=modals,
    )


def check_validated(method: Any, held: Held) -> None:
    """Refuse (`FedloomError`) clients without validation samples where a method learns by them."""
    if not declared(method).validates:
        return
    lacking = [int(k) for k in held.participants if not len(held.of_splits("val", int(k)))]
    if lacking:
        shown = ", ".join(map(str, lacking[:5])) + (", ..." if len(lacking) > 5 else "")
        raise FedloomError(
            f"{declared(method).title}: no validation samples at {len(lacking)} of "
            f"{len(held.participants)} clients ({shown}); allowed: a partition with a val in which "
            "every client that takes part has some (min_samples, or a larger val)"
        )


def build(composed: Composed, setting: Setting) -> Method:
    """The method, with what the study adds to it."""
    terms = tuple(term.build(setting) for term in composed.terms)
    alterations = tuple(one.build(setting) for one in composed.alterations)
    made: Method = composed.method.build(replace(setting, terms=terms, alterations=alterations))
    for term in terms:
        if isinstance(term, Attached):
            made = term.attach(made)
    return made


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
    found: np.ndarray | None = getattr(prepared, task.labels)
    if found is None:
        raise DataError(
            f"{prepared.folder}: has no {task.given}; allowed: a data set for {task.name}"
        )
    return found


def _normalisation(prepared: Prepared, training: Training) -> dict[str, Any] | None:
    if training.normalisation == "half" and prepared.normalisation is not None:
        return {**prepared.normalisation, "mean": 0.5, "sd": 0.5}
    return prepared.normalisation


def reseeded(like: Simulation, spec: Spec, parts: Parts) -> Simulation:
    """The simulation of a spec that differs from that of ``like`` only in its seed, on the same
    data.
    """
    modals = tuple(reseeded(one, spec, parts) for one in like.modals)
    return _simulation(
        *(parts, like.network, like.training, like.arrays, like.held, like.classes),
        spec["seed"],
        modals,
    )
