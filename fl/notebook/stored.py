"""Models of a finished run, and their predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fl.api.method import VARIABLE_GROUPS, Predictor
from fl.api.trees import Tree
from fl.base import plugins, registry
from fl.base.errors import DataError, FedloomError, Location, unknown_name
from fl.base.hashes import content_hash
from fl.base.schema import GLOBAL, PERSONAL
from fl.base.specs import Spec
from fl.data import partition_table, partitioning, preparation
from fl.data.dataset import own_files_by_name
from fl.data.normalisation import channel_means, ranked_words
from fl.data.prepared import Prepared
from fl.data.readers.raw_inputs import ImageReader, Input, Reader, TableReader, TextReader
from fl.engine.predictions import predict_split, stored_models
from fl.engine.sample_arrays import Arrays
from fl.engine.simulation import Simulation
from fl.notebook.display import name_arguments, warn
from fl.notebook.model import SINGLE, Card, Model, Rule
from fl.plan.bundle import Bundle, Run
from fl.plan.run_spec import RunSpec
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

    def model(self, stage: str, client: int | str | None) -> Model:
        """Return the model of a stage, or a client's own model, by its number or name."""
        simulation, spec = self.simulation, self.member.spec
        self._check_stage(stage)
        view, number = simulation.method.views[stage], None
        has_memory = isinstance(view, Predictor) and view.look is not None
        if stage != GLOBAL or has_memory:
            number = self._client_number(client)
        models = stored_models(simulation, self.weights[stage], stage)
        if number is not None and not models.serves(number):
            problem = f"{self.bundle.title}: client {client} never took part, and has no model"
            raise FedloomError(problem, advice="another client")
        variables, memory = models.model_of(number or 0)
        rule = None
        if isinstance(view, Predictor):
            keys = ("method", *registry.ADDED_KINDS)
            rule = Rule(
                {key: value for key, value in spec.items() if key in keys},
                simulation.client_data.clients,
                len(simulation.client_data.absent_clients),
                simulation.seed,
                tuple(m.name for m in simulation.modalities if m.tokens),
            )
        else:
            variables = {group: variables[group] for group in VARIABLE_GROUPS}
        run, arrays = RunSpec(spec), simulation.arrays
        prepared, table = run.data(self.bundle.folders)
        card = Card(
            run=self.member.run,
            title=name_arguments(self.bundle.title),
            stage=stage,
            client=number,
            task=simulation.task.name,
            classes=prepared.classes,
            target=(arrays.label_mean, arrays.label_sd),
            model=dict(spec["model"]),
            training=dict(spec["training"]),
            inputs=_inputs(run, prepared, table, arrays),
            rule=rule,
            code=_plugin_files(spec, simulation.task.name, rule is not None),
        )
        frozen = simulation.network.frozen
        return Model(card, {"variables": variables, "memory": memory, "frozen": frozen})

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

    def _client_number(self, client: int | str | None) -> int:
        """Return the number of a client, which may be given by its name in the data set."""
        clients = self.simulation.client_data.clients
        allowed = f"a number from 0 to {clients - 1}"
        if isinstance(client, str):
            spec = self.member.spec
            names = partitioning.client_names(
                spec["partition"], spec["dataset"], self.bundle.folders.results
            )
            if client not in names:
                location = Location(self.bundle.title)
                if names:
                    raise unknown_name(location, "client", client, names)
                problem = f"{location}: client is {client!r}, but clients have no names"
                raise FedloomError(problem, allowed)
            return names.index(client)
        if client is None:
            advice = f"give client=, {allowed}, or stage='global' if it exists"
            problem = f"{self.bundle.title}: every client has a model of its own"
            raise FedloomError(problem, advice=advice)
        return self._check_client(client)

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


def _inputs(
    run: RunSpec, prepared: Prepared, table: pd.DataFrame, arrays: Arrays
) -> dict[str, Input]:
    """Return how raw inputs of a run's data set become inputs of its models, by name."""
    by_name = arrays.by_input or {SINGLE: arrays}
    modalities = {modality.name: modality for modality in run.components.modalities}
    training_samples = partition_table.training_samples(table)
    inputs = {}
    for name, part in by_name.items():
        modality = modalities.get(name)
        array = modality.array if modality else "x"
        x, normalisation = prepared.array(array), part.normalisation
        tokens = modality.tokens if modality else getattr(run.dataset, "tokens", 0)
        reader = _reader(run) if array == "x" else None
        item = Input(
            shape=part.shape,
            dtype=str(x.dtype),
            normalisation=None
            if normalisation is None
            else {key: normalisation[key] for key in ("scale", "mean", "sd")},
            tokens=tokens if normalisation is None else 0,
            table=reader if isinstance(reader, TableReader) else None,
            images=reader if isinstance(reader, ImageReader) else None,
        )
        described = prepared.normalisation_of(array)
        if described is not None and described.get("missing") == "mean":
            item = replace(item, fills=tuple(channel_means(x, training_samples).tolist()))
        if isinstance(reader, TextReader):
            if prepared.vocabulary:
                size, words = prepared.vocabulary, prepared.words
                numbers = ranked_words(x, training_samples, len(words), size)
                reader = replace(reader, words=tuple(words[number] for number in numbers))
            item = replace(item, text=reader)
        inputs[name] = item
    return inputs


def _reader(run: RunSpec) -> Reader | None:
    """Return the reader of raw inputs of a data set, or None.

    The user's own files must be those of training; without them, a model takes arrays.
    """
    spec = run.spec["dataset"]
    if not hasattr(type(run.dataset), "input_reader"):
        return None
    try:
        for name, paths in own_files_by_name(run.dataset, None).items():
            if content_hash(paths) != spec.get("content", {}).get(name):
                raise DataError(f"{name}: the file has changed since the run was trained")
        reader: Reader = run.dataset.input_reader  # type: ignore[attr-defined]
    except (DataError, OSError) as error:
        warn(f"the model takes arrays only, of inputs as they are prepared: {error}")
        return None
    return reader


def _plugin_files(spec: Spec, task: str, with_method: bool) -> dict[str, str]:
    """Return the files of plugins that a kept model needs, by component."""
    named = [("model", spec["model"]["name"]), ("task", task)]
    if with_method:
        named.append(("method", spec["method"]["name"]))
        named += [(kind, added["name"]) for _, kind, added in registry.added_components(spec)]
    files = {}
    for kind, name in named:
        file = registry.file(kind, name, Location("the spec"))
        for root in plugins.roots().values():
            if root != plugins.FL and file.is_relative_to(root):
                files[f"{kind} {name}"] = str(file.relative_to(root.parent))
    return files
