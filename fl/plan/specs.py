"""From a run's spec to objects: its model, its method, its simulation, and the code of each."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl.api.training import Training
from fl.base import fields, identity, registry
from fl.base.errors import Location
from fl.base.files import sha256
from fl.base.places import Folders
from fl.base.registry import entry_of, find
from fl.data import materials

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from fl.data.prepared import Prepared
    from fl.engine.assembly import Composed, Parts
    from fl.engine.simulation import Simulation

Spec = Mapping[str, Any]
"""A run's whole spec; of a part of it, ``{"name": ..., key: value, ...}``."""

KINDS = {
    "dataset": "data set",
    "partition": "partition scheme",
    "model": "model",
    "method": "method",
    **registry.ADDED,
}
"""The entries in a spec, by key, as the registry calls them."""


def components_of(spec: Spec) -> Parts:
    """The objects that a run's spec names, made with its values."""
    from fl.engine.assembly import Parts

    return Parts(
        entry_of("model", spec["model"])[1],
        composed(spec),
        materials.task_of(spec["dataset"]),
        materials.modalities_of(spec["dataset"]),
    )


def composed(spec: Spec) -> Composed:
    """What the method of a run's spec is composed of."""
    from fl.engine.assembly import Composed

    added = {
        key: tuple(entry_of(kind, its)[1] for its in spec.get(key, ()))
        for key, kind in registry.ADDED.items()
    }
    return Composed(entry_of("method", spec["method"])[1], **added)


def assemble(spec: Spec, folders: Folders, device: torch.device) -> Simulation:
    """The simulation that a run's spec describes; missing data and partitions are made first."""
    from fl.engine.assembly import assemble

    return assemble(spec, components_of(spec), *_dealt(spec, folders), device)


def domains_of(spec: Spec, folders: Folders) -> list[str]:
    """The domain of most of each client's training samples; nothing if the data set has none."""
    prepared, table = _dealt(spec, folders)
    return materials.domains_of(table, prepared)


def _dealt(spec: Spec, folders: Folders) -> tuple[Prepared, pd.DataFrame]:
    """The data set and the partition of a run, made if they do not exist yet, else checked."""
    given = materials.supply(spec["dataset"], folders.sources, folders.lock)
    prepared = materials.prepare(spec["dataset"], folders.data, given)
    prepared.verify()
    table = materials.partition(spec["partition"], spec["dataset"], folders.data, folders.results)
    return prepared, table


def code(spec: Spec) -> dict[str, str]:
    """What names the code of a run of that spec, by root: a version, or the hash of an edit; and
    the ids of its data.
    """
    dataset = materials.dataset_id(spec["dataset"])
    entries = {key: identity.code(root) for key, root in _entries(spec).items()}
    return {
        **entries,
        **identity.versions_of_settings(spec),
        "core": identity.code(identity.CORE),
        "model": model_code(spec["model"]),
        "dataset": dataset,
        "partition": materials.partition_id(spec["partition"], dataset),
    }


def _entries(spec: Spec) -> dict[str, str]:
    """The roots of the entries that train a run, by their key in `code`."""
    added = {
        f"{'term' if key == 'terms' else key} {its['name']}": identity.entry(kind, its["name"])
        for key, kind, its in registry.added(spec)
    }
    return {
        **added,
        "method": identity.entry("method", spec["method"]["name"]),
        "model": identity.entry("model", spec["model"]["name"]),
        "task": identity.entry("task", materials.task_name(spec["dataset"])),
    }


def _named(spec: Spec) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """The place of each entry in a spec, ``method``, ``terms.0``, with its values and target."""
    for key, kind in KINDS.items():
        given = spec.get(key, [])
        several = {f"{key}.{i}": values for i, values in enumerate(given)}
        for place, values in (several if isinstance(given, list) else {key: given}).items():
            yield place, values, find(kind, values["name"], Location("the spec")).target


def defaults(spec: Spec) -> list[str]:
    """The keys of a spec that have their defaults, as ``training.momentum``, ``terms.0.mu``.

    A run's name leaves them out (`fl.base.identity.point`): a key that Fedloom gets later renames
    no run. That no default changes unseen is held by ``tests/golden/defaults.json``.
    """
    places = [("training", spec["training"], Training), *_named(spec)]
    return [
        f"{place}.{key}"
        for place, values, target in places
        for key in fields.at_default(target, values)
    ]


def with_defaults(spec: Spec) -> dict[str, Any]:
    """A spec of a stored run with the defaults of keys that came after it."""
    whole = copy.deepcopy(dict(spec))
    for _, values, target in _named(whole):
        for key, field in fields.fields(target).items():
            if field.default is not fields.REQUIRED:
                values.setdefault(key, field.default)
    return whole


def model_code(spec: Spec) -> str:
    """The code of a model, and the content of a weights file of the user's own."""
    code = identity.code(identity.entry("model", spec["name"]))
    weights = spec.get("weights")
    if not isinstance(weights, str) or not Path(weights).is_file():
        return code
    return identity.digest([code, _content(weights, Path(weights).stat().st_mtime_ns)])


@cache
def _content(path: str, changed: int) -> str:
    return sha256(Path(path))


def code_files(spec: Spec) -> dict[str, str]:
    """The files behind a run of that spec that are not certified, with their hashes."""
    return identity.edited(
        identity.CORE,
        identity.DATA,
        identity.entry("data set", spec["dataset"]["name"]),
        identity.entry("partition scheme", spec["partition"]["name"]),
        *_entries(spec).values(),
    )
