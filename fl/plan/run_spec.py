"""The spec of a run, and the components that it names: its model, its method, its code."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl.api.training import Training
from fl.base import arithmetic, fields, identity, registry
from fl.base.errors import FedloomError, Location
from fl.base.folders import Folders, path_of
from fl.base.hashes import change_stamp, content_hash
from fl.base.registry import component_of, find
from fl.base.specs import ComponentSpec, MethodSpec, Spec, component_specs
from fl.data import partitioning, preparation
from fl.data.dataset import Dataset, modalities_of, task_name, task_of
from fl.plan.partition_facts import PartitionFacts

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from fl.data.prepared import Prepared
    from fl.engine.assembly import RunComponents
    from fl.engine.modality_simulation import ModalitySimulation
    from fl.engine.run_setup import MethodComponents
    from fl.engine.simulation import Simulation

COMPONENT_KINDS = {
    "dataset": "data set",
    "partition": "partition scheme",
    "model": "model",
    "method": "method",
    **registry.ADDED_KINDS,
}
"""The registry's kind of each component of a spec, by its key."""


SPEC_ERRORS = (FedloomError, OSError, KeyError, TypeError, ValueError, AttributeError)
"""Errors of a stored spec whose components, or their keys, the present code does not have."""


COMPONENT_FIELDS = {"wire": "upload_filters"}
"""Fields of `fl.engine.run_setup.MethodComponents` by key of the spec, where the two differ: run
names contain the keys of specs, so a key of a spec stays.
"""


@dataclass(frozen=True)
class RunSpec:
    """A run's spec; the components that it names are made once, when they are asked for.

    Attributes:
        spec: Every choice that decides the run's numbers, as plans and records write it.
    """

    spec: Spec

    @cached_property
    def dataset(self) -> Dataset:
        """The data set."""
        dataset: Dataset = component_of("data set", self.spec["dataset"])[1]
        return dataset

    @property
    def partition(self) -> PartitionFacts:
        """Facts of the partition that are known before it is made."""
        return PartitionFacts(self.spec["partition"], self.dataset, self.spec["dataset"]["name"])

    @cached_property
    def method_components(self) -> MethodComponents:
        """The method with the terms, alterations and upload filters that the study adds."""
        return method_components_of(self.spec)

    @cached_property
    def components(self) -> RunComponents:
        """The objects that a simulation is made of."""
        from fl.engine.assembly import RunComponents

        return RunComponents(
            component_of("model", self.spec["model"])[1],
            self.method_components,
            task_of(self.dataset, self.spec["dataset"]["name"]),
            modalities_of(self.dataset),
        )

    @cached_property
    def code(self) -> dict[str, str]:
        """The versions of code, or hashes of edited code, and the ids of data, by root."""
        dataset = preparation.dataset_id(self.spec["dataset"])
        return {
            **{key: identity.root_code(root) for key, root in self.roots.items()},
            **identity.option_versions(self.spec),
            **_added_content(self.spec),
            "core": identity.root_code(identity.CORE),
            "model": model_code(self.spec["model"]),
            "dataset": dataset,
            "partition": partitioning.partition_id(self.spec["partition"], dataset),
        }

    @cached_property
    def code_files(self) -> dict[str, str]:
        """Hashes of the files behind the run that are not certified."""
        return identity.uncertified_files(identity.CORE, *self.data_roots, *self.roots.values())

    @cached_property
    def default_keys(self) -> list[str]:
        """The keys that have their defaults, as ``training.momentum``, ``terms.0.mu``.

        A run's name leaves them out (`fl.base.identity.point_id`), so that a key that Fedloom gets
        later renames no run. ``tests/golden/defaults.json`` shows whether a default changed.
        """
        training = {**self.spec["training"]}
        keys = []
        # Before there was this key, all runs were native. So names leave out `native`.
        if training.pop("arithmetic", None) == arithmetic.NATIVE:
            keys.append("training.arithmetic")
        keys += [f"training.{key}" for key in fields.at_default(Training, training)]
        for key, kind, component in _components(self.spec):
            target = find(kind, component["name"], Location("the spec")).target
            keys += [f"{key}.{name}" for name in fields.at_default(target, component)]
        return keys

    def assemble(self, folders: Folders, device: torch.device) -> Simulation | ModalitySimulation:
        """Return the run's simulation; missing data and partitions are made first."""
        from fl.engine.assembly import assemble

        return assemble(self.spec, self.components, *self.data(folders), device)

    def domains(self, folders: Folders) -> list[str]:
        """Return the domain of most of each client's training samples; empty if there are none."""
        prepared, table = self.data(folders)
        return partitioning.client_domains(table, prepared)

    def data(self, folders: Folders) -> tuple[Prepared, pd.DataFrame]:
        """Return data set and partition: made if they do not exist, else checked."""
        dataset = self.spec["dataset"]
        supply = preparation.source_policy(dataset, folders.sources, folders.lock)
        prepared = preparation.prepare_dataset(dataset, folders.data, supply)
        prepared.verify()
        table = partitioning.make_partition(
            self.spec["partition"], dataset, folders.data, folders.results
        )
        return prepared, table

    @property
    def data_roots(self) -> tuple[str, str, str]:
        """The roots of the code behind the ids of data set and partition."""
        return (
            identity.DATA,
            identity.entry("data set", self.spec["dataset"]["name"]),
            identity.entry("partition scheme", self.spec["partition"]["name"]),
        )

    @cached_property
    def roots(self) -> dict[str, str]:
        """The roots of the code of all components that train the run, by their key in `code`."""
        added_components = {
            f"{'term' if key == 'terms' else key} {component['name']}": identity.entry(
                kind, component["name"]
            )
            for key, kind, component in registry.added_components(self.spec)
        }
        return {
            **added_components,
            "method": identity.entry("method", self.spec["method"]["name"]),
            "model": identity.entry("model", self.spec["model"]["name"]),
            "task": identity.entry("task", task_name(self.dataset)),
        }


def method_components_of(spec: MethodSpec) -> MethodComponents:
    """Return a method with the terms, alterations and upload filters that a study adds."""
    from fl.engine.run_setup import MethodComponents

    added_components = {
        COMPONENT_FIELDS.get(key, key): tuple(
            component_of(kind, component)[1] for component in component_specs(spec, key)
        )
        for key, kind in registry.ADDED_KINDS.items()
    }
    return MethodComponents(component_of("method", spec["method"])[1], **added_components)


def _components(spec: Spec) -> Iterator[tuple[str, str, ComponentSpec]]:
    """Yield the components that a spec names: key (``method``, ``terms.0``), kind and spec."""
    for key, kind in COMPONENT_KINDS.items():
        for i, component in enumerate(component_specs(spec, key)):
            yield f"{key}.{i}" if key in registry.ADDED_KINDS else key, kind, component


def with_defaults(spec: Spec) -> Spec:
    """Return the spec of a stored run with the defaults of keys that were added after it."""
    completed = copy.deepcopy(spec)
    for _, kind, component in _components(completed):
        assert isinstance(component, dict)
        target = find(kind, component["name"], Location("the spec")).target
        for key, field in fields.fields(target).items():
            if field.default is not fields.REQUIRED:
                component.setdefault(key, field.default)
    return completed


def is_of_other_code(record: Mapping[str, Any]) -> bool:
    """Whether a finished run was made by other code than the present; False for an empty record."""
    try:
        return bool(record) and RunSpec(with_defaults(record["spec"])).code != record["code"]
    except SPEC_ERRORS:
        return True


def model_code(model: ComponentSpec, code_of: identity.CodeOf = identity.root_code) -> str:
    """Return the code of a model, with the content of weights of the user's own."""
    code = code_of(identity.entry("model", model["name"]))
    weights = model.get("weights")
    files = _weight_files(path_of(weights)) if isinstance(weights, str) else ()
    return identity.digest([code, _content(files, change_stamp(files))]) if files else code


def added_files(spec: MethodSpec) -> Iterator[tuple[str, Path]]:
    """Yield the user's own files that added components read, each with its key in `RunSpec.code`.

    A component names the keys of such files by a class variable ``files``.
    """
    for _, kind, component in registry.added_components(spec):
        target = find(kind, component["name"], Location("the spec")).target
        for key in getattr(target, "files", ()):
            if component.get(key) is not None:
                yield f"{kind} {component['name']} {key}", path_of(component[key])


def _added_content(spec: MethodSpec) -> dict[str, str]:
    """Return the content of these files, by key of `RunSpec.code`; absent ones have none."""
    return {
        key: _content((path,), change_stamp([path]))
        for key, path in added_files(spec)
        if path.is_file()
    }


def _weight_files(path: Path) -> tuple[Path, ...]:
    """Return a file of weights, or those of a folder with what describes them; none if absent."""
    if path.is_dir():
        return (*sorted(path.glob("*.safetensors")), *sorted(path.glob("config.json")))
    return (path,) if path.is_file() else ()


@cache
def _content(files: tuple[Path, ...], stamp: str) -> str:
    """Hash of files, which are read again if their stamp differs."""
    return content_hash(files)
