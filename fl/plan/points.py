"""From a method entry of a study to the points of its grid, with every default filled in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl.api.training import Training
from fl.base import fields, registry
from fl.base.errors import ConfigError, Location, unknown
from fl.base.registry import ADDED, Component
from fl.plan import published
from fl.plan.config import Study
from fl.plan.draws import drawn
from fl.plan.grids import check_size, each_once, grid, is_grid

ONE = "aggregation"
"""The key of which an entry has one; its name may stand alone."""
RESERVED = ("method", "start", "train_on", "title", *ADDED, "execution", "dataset", "partition")
EXCLUSIVE = ("local_epochs", "local_steps")


@dataclass(frozen=True)
class Point:
    """A method entry of a study at one point of its grid.

    Attributes:
        added: By key, the specs of what the entry adds: its terms, alterations ...
    """

    entry: Component
    values: dict[str, Any]
    added: dict[str, list[dict[str, Any]]]
    training: dict[str, Any]
    grid: dict[str, Any]

    @property
    def spec(self) -> dict[str, Any]:
        """Its part of a run's spec."""
        return {"name": self.entry.name, **self.values}


def points(
    folder: Path,
    study: Study,
    location: Location,
    label: str,
    entry: Component,
    layers: Sequence[tuple[Mapping[str, Any], Location]],
) -> Iterator[Point]:
    """All points of a method entry.

    Args:
        folder: The config's.
        location: The study's file.
        label: The entry's name.
        entry: Its method.
        layers: The study's ``training``, the method's defaults and what the entry says, each with
            its place.

    Raises:
        ConfigError: For a layer that is not understood.
    """
    (general, general_at), (defaults, defaults_at), (given, at) = layers
    declared_hyper, training = fields.fields(entry.target), fields.fields(Training)
    for key in declared_hyper.keys() & {*training, *RESERVED}:
        problem = f"the method {entry.name!r} calls a hyper-parameter as a key of every entry"
        raise ConfigError(at / key, problem, "another name in the method's file")
    declared = {**training, **declared_hyper}
    _check_layer(study, general, training, (), general_at)
    for layer, place in ((defaults, defaults_at), (given, at)):
        _check_layer(study, layer, declared, RESERVED, place)
    fixed = getattr(entry.target, "training", {})
    merged = _layered(general, fixed, defaults, given)
    added = _added(merged, at)
    merged = {key: value for key, value in merged.items() if key not in RESERVED}
    for name, (_, added_entry, values) in added.items():
        declared |= _under(name, fields.fields(added_entry.target))
        merged |= _under(name, values)
    merged |= _published(folder, study, location, label, declared)
    merged = drawn(declared, merged, study.search_seed, at)
    several = [k for k, v in merged.items() if is_grid(declared.get(k), v) and len(v) > 1]
    check_size(declared, merged, study.max_runs, at)
    for values in grid(declared, merged):
        hyper = entry.parse({k: v for k, v in values.items() if k in declared_hyper}, at)
        rest = {k: v for k, v in values.items() if k in training}
        settled = Training.settle(fields.parse(Training, rest, at), at)
        specs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in ADDED}
        for name, (kind, added_entry, _) in added.items():
            keys = _under(name, dict.fromkeys(fields.fields(added_entry.target)))
            its = {key.partition(".")[2]: values[key] for key in keys if key in values}
            specs[kind].append({"name": name, **added_entry.parse(its, at / kind / name)})
        yield Point(entry, hyper, specs, settled, {key: values[key] for key in several})


def _added(
    merged: Mapping[str, Any], at: Location
) -> dict[str, tuple[str, Component, Mapping[str, Any]]]:
    """What an entry adds, by name: the config key, its kind, and the keys that the entry sets of
    it.
    """
    by_name: dict[str, tuple[str, Component, Mapping[str, Any]]] = {}
    for kind, called in ADDED.items():
        location = at / kind
        given = merged.get(kind)
        given = {given: None} if kind == ONE and isinstance(given, str) else given
        if isinstance(given, list):
            allowed = "a mapping (name: its keys); alternatives are entries of their own"
            raise ConfigError(location, f"is {given!r}", allowed)
        given = fields.mapping(given, location)
        if kind == ONE and len(given) > 1:
            raise ConfigError(location, f"is {' and '.join(given)}", "one of them")
        for name, values in given.items():
            entry = registry.find(called, name, location / name)
            if name in by_name:
                problem = f"{name!r} stands in {by_name[name][0]} too"
                raise ConfigError(location / name, problem, "each name once, as keys go by it")
            values = fields.mapping(values, location / name)
            declared = fields.fields(entry.target)
            for key in values:
                if key not in declared:
                    raise unknown(location / name / key, "key", key, declared)
            each_once(declared, values, location / name)
            by_name[name] = (kind, entry, values)
    return by_name


def _under(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of what is added, as an entry's: ``<name>.<key>``."""
    return {f"{name}.{key}": value for key, value in values.items()}


def _published(
    folder: Path, study: Study, location: Location, label: str, declared: Mapping[str, fields.Field]
) -> dict[str, float]:
    """What ``grid: published`` sets of an entry, by key."""
    best, location = study.best, location / "best"
    if study.grid != "published":
        return {}
    if best is None:
        raise ConfigError(location, "is missing", "what to take, as grid is published")
    cells, values = published.table(folder, best.source, best.table, location), {}
    for key, row in best.rows.get(label, {}).items():
        at = location / "rows" / label / key
        if key not in declared:
            raise unknown(at, "key", key, declared)
        values[key] = published.number(published.cell(cells, row, best.column, at))
    return values


def _check_layer(
    study: Study,
    layer: Mapping[str, Any],
    declared: Mapping[str, fields.Field],
    reserved: tuple[str, ...],
    location: Location,
) -> None:
    """Check each key and value of one layer, and that its grid is no larger than the study may."""
    for key in layer:
        if key not in declared and key not in reserved:
            raise unknown(location / key, "key", key, (*declared, *reserved))
    each_once(declared, layer, location)
    layer = drawn(declared, layer, study.search_seed, location)
    check_size(declared, layer, study.max_runs, location)
    for values in grid(declared, layer):
        for key, given in values.items():
            if key in declared:
                fields.value(declared[key].hint, given, location / key)
        if all(values.get(key) is not None for key in EXCLUSIVE):
            Training.settle({"participation": 1.0, **values}, location)


def _layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Later layers win; one that sets a client's local work removes the earlier settings of it."""
    merged: dict[str, Any] = {}
    for layer in layers:
        if any(key in layer for key in EXCLUSIVE):
            merged = {key: value for key, value in merged.items() if key not in EXCLUSIVE}
        merged |= layer
    return merged
