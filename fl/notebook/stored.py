"""The models of a finished run, and what they predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fl.api import trees
from fl.api.method import VARIABLE_GROUPS
from fl.api.trees import Tree
from fl.base.errors import FedloomError, Location, unknown_name
from fl.base.registry import component_of
from fl.base.schema import GLOBAL, PERSONAL
from fl.data import preparation
from fl.engine.predictions import predict_split
from fl.engine.simulation import TYPE_BY_PRECISION, Simulation
from fl.plan.bundle import Bundle, Member
from fl.runner import simulations
from fl.store.store import Store

CPU = torch.device("cpu")


def classes_of(bundle: Bundle, member: Member) -> tuple[str, ...]:
    """The names of the classes of a run's data set."""
    spec = member.spec["dataset"]
    supply = preparation.source_policy(spec, bundle.sources, bundle.lock)
    return preparation.prepare_dataset(spec, bundle.folders.data, supply).classes


@dataclass(frozen=True)
class Stored:
    """A finished run with its final weights.

    Attributes:
        weights: By stage, the variables of the shared model, and of the clients' own as a stack.
    """

    bundle: Bundle
    member: Member
    simulation: Simulation
    weights: Mapping[str, Tree]

    @classmethod
    def open(cls, bundle: Bundle, member: Member, store: Store, like: Stored | None) -> Stored:
        """The run of that member.

        Args:
            like: Another run of the bundle, whose data it shares.

        Raises:
            FedloomError: If its weights were not kept, or are no weights of one network.
        """
        if not store.has_weights(member.run):
            raise FedloomError(
                f"{store.folder(member.run)}: its final weights were not kept; with "
                "`keep_weights=True` fl.run trains it again, and so does a study with "
                "`keep_weights: true`"
            )
        same = like.simulation if like else None
        simulation = simulations.made(bundle, member, same, store, CPU)
        if simulation.by_modality:
            raise FedloomError(
                f"{bundle.title}: clients differ in modality, and have no model in common. "
                "Allowed: runs whose clients have the same inputs"
            )
        return cls(bundle, member, simulation, store.weights(member.run))

    @property
    def stage(self) -> str:
        """The stage that tables show."""
        return PERSONAL if PERSONAL in self.simulation.method.views else GLOBAL

    def module(self, stage: str, client: int | None) -> nn.Module:
        """The model of a stage, in evaluation mode; a client's own where the stage has these."""
        spec, arrays = self.member.spec, self.simulation.arrays
        variables = self._variables(stage, client)
        module: nn.Module = component_of("model", spec["model"])[1].build(
            arrays.shapes or arrays.shape, self.simulation.classes
        )
        module.to(TYPE_BY_PRECISION[spec["training"]["precision"]])
        there = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for kind in VARIABLE_GROUPS:
                for name in self.simulation.network.names[kind]:
                    there[name].copy_(variables[kind][name])
        return module.eval()

    def inputs(self, client: int, split: str) -> tuple[Any, Tensor]:
        """Inputs and labels of a client's samples."""
        index = torch.from_numpy(self._samples(split)[self._known(client)])
        return self.simulation.arrays.inputs(index), self.simulation.arrays.labels(index)

    def predictions(self, stage: str, split: str) -> pd.DataFrame:
        """A row for each sample of a split: client, sample, label, predicted, and scores."""
        simulation = self.simulation
        if simulation.task.labels != "y":
            raise FedloomError(
                f"{self.bundle.title}: has {simulation.task.label_name}. Allowed: a data "
                "set with class labels"
            )
        self._check(stage)
        self._samples(split)
        return predict_split(simulation, self.weights[stage], stage, split)

    def _check(self, stage: str) -> None:
        location, views = Location(self.bundle.title), self.simulation.method.views
        if stage not in views:
            raise unknown_name(location, "stage", stage, views)
        if not all(kind in self.weights[stage] for kind in VARIABLE_GROUPS):
            raise FedloomError(
                f"{location}: the stage {stage!r} keeps no model. Allowed: another method"
            )

    def _variables(self, stage: str, client: int | None) -> Tree:
        self._check(stage)
        weights = {kind: self.weights[stage][kind] for kind in VARIABLE_GROUPS}
        if stage == GLOBAL:
            return weights
        if client is None:
            last = self.simulation.client_data.clients - 1
            raise FedloomError(
                f"{self.bundle.title}: every client has a model of its own. Allowed: client= one "
                f"of 0 to {last}, or stage='global' where there is one"
            )
        return trees.take(weights, self._known(client))

    def _known(self, client: int) -> int:
        clients = self.simulation.client_data.clients
        if not isinstance(client, Integral) or not 0 <= client < clients:
            allowed = f"Allowed: its number, 0 to {clients - 1}"
            raise FedloomError(f"{self.bundle.title}: client is {client!r}; {allowed}")
        return client

    def _samples(self, split: str) -> Sequence[np.ndarray]:
        """By client, the numbers of its samples."""
        samples = self.simulation.client_data.samples
        if split not in samples:
            raise unknown_name(Location(self.bundle.title), "split", split, samples)
        return samples[split]
