"""Models of a finished run, and their predictions."""

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
from fl.base.schema import GLOBAL, PERSONAL
from fl.data import preparation
from fl.engine.predictions import predict_split
from fl.engine.simulation import Simulation
from fl.plan.bundle import Bundle, Run
from fl.runner.runs import make_simulation
from fl.store.store import Store

CPU = torch.device("cpu")


def classes_of(bundle: Bundle, member: Run) -> tuple[str, ...]:
    """Return the names of the classes of a run's data set."""
    spec = member.spec["dataset"]
    supply = preparation.source_policy(spec, bundle.sources, bundle.lock)
    return preparation.prepare_dataset(spec, bundle.folders.data, supply).classes


@dataclass(frozen=True)
class StoredModels:
    """Finished run with its final weights.

    Attributes:
        bundle: Bundle of the run.
        member: The run in its bundle.
        simulation: Its simulation.
        weights: Variables of models by stage; clients' own models as a stack.
    """

    bundle: Bundle
    member: Run
    simulation: Simulation
    weights: Mapping[str, Tree]

    @classmethod
    def open(
        cls, bundle: Bundle, member: Run, store: Store, sibling: StoredModels | None
    ) -> StoredModels:
        """Open a finished run.

        Args:
            bundle: Bundle of the run.
            member: The run in its bundle.
            store: The store of runs.
            sibling: Another run of the bundle, whose data it shares.

        Raises:
            FedloomError: If its weights are not stored, or clients have different networks.
        """
        if not store.has_weights(member.run):
            raise FedloomError(
                f"{store.folder(member.run)}: its final weights are not stored",
                advice="train it again by fl.run with `keep_weights=True`, or by a study with "
                "`keep_weights: true`",
            )
        shared_simulation = sibling.simulation if sibling else None
        simulation = make_simulation(bundle, member, shared_simulation, store, CPU)
        if not isinstance(simulation, Simulation):
            raise FedloomError(
                f"{bundle.title}: clients of different modalities have no common model",
                advice="choose a run whose clients have the same inputs",
            )
        return cls(bundle, member, simulation, store.weights(member.run))

    @property
    def stage(self) -> str:
        """Return the stage that tables show."""
        return PERSONAL if PERSONAL in self.simulation.method.views else GLOBAL

    def module(self, stage: str, client: int | None) -> nn.Module:
        """Return the model of a stage, or a client's own model, in evaluation mode."""
        return self.simulation.network.module(self._variables(stage, client)).eval()

    def inputs(self, client: int, split: str) -> tuple[Any, Tensor]:
        """Return inputs and labels of a client's samples."""
        index = torch.from_numpy(self._samples(split)[self._check_client(client)])
        return self.simulation.arrays.inputs(index), self.simulation.arrays.labels(index)

    def predictions(self, stage: str, split: str) -> pd.DataFrame:
        """Return a row for each sample of a split, see `fl.engine.predictions.predict_split`."""
        simulation = self.simulation
        if simulation.task.labels not in ("y", "target"):
            raise FedloomError(
                f"{self.bundle.title}: has {simulation.task.label_name}",
                advice="choose a data set with class labels or targets",
            )
        self._check_stage(stage)
        self._samples(split)
        return predict_split(simulation, self.weights[stage], stage, split)

    def _check_stage(self, stage: str) -> None:
        location, views = Location(self.bundle.title), self.simulation.method.views
        if stage not in views:
            raise unknown_name(location, "stage", stage, views)
        if not all(group in self.weights[stage] for group in VARIABLE_GROUPS):
            raise FedloomError(
                f"{location}: the stage {stage!r} has no model", advice="choose another method"
            )

    def _variables(self, stage: str, client: int | None) -> Tree:
        self._check_stage(stage)
        weights = {group: self.weights[stage][group] for group in VARIABLE_GROUPS}
        if stage == GLOBAL:
            return weights
        if client is None:
            last = self.simulation.client_data.clients - 1
            raise FedloomError(
                f"{self.bundle.title}: every client has a model of its own",
                advice=f"give client=, a number from 0 to {last}, or stage='global' if it exists",
            )
        return trees.take(weights, self._check_client(client))

    def _check_client(self, client: int) -> int:
        clients = self.simulation.client_data.clients
        if not isinstance(client, Integral) or not 0 <= client < clients:
            raise FedloomError(
                f"{self.bundle.title}: client is {client!r}", f"a number from 0 to {clients - 1}"
            )
        return client

    def _samples(self, split: str) -> Sequence[np.ndarray]:
        """Return the numbers of each client's samples."""
        samples = self.simulation.client_data.samples
        if split not in samples:
            raise unknown_name(Location(self.bundle.title), "split", split, samples)
        return samples[split]
