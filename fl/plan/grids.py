"""From a method entry of a study to its points: grids, random search, defaults.

A list where one value is expected is a grid. A key with a distribution is searched at random:
``lr: {log_uniform: [1e-4, 1], draws: 8}``. Keys that are searched go through their values together.

J. Bergstra and Y. Bengio. Random Search for Hyper-Parameter Optimization. JMLR 2012.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fl.api.training import Training
from fl.base import fields, registry, rng
from fl.base.errors import ConfigError, Location, unknown
from fl.base.registry import ADDED, Component, entry_key
from fl.plan import published
from fl.plan.config import Study, second_occurrence


def grid(
    declared: Mapping[str, fields.Field], values: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Every combination of the values that are lists where one value is expected."""
    options = _options(declared, values)
    for combination in itertools.product(*options.values()):
        chosen = {key: value for values in combination for key, value in values.items()}
        yield {key: chosen[key] for key in values}


class SearchedValues(list[float]):
    """The values that are drawn for a key: the i-th ones of an entry's keys are one point."""


def _options(
    declared: Mapping[str, fields.Field], values: Mapping[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """By key, or for all that are drawn at the first of them, what a point may have."""
    options: dict[str, list[dict[str, Any]]] = {}
    drawn = {key: value for key, value in values.items() if isinstance(value, SearchedValues)}
    for key, value in values.items():
        if key not in drawn:
            options[key] = [
                {key: v} for v in (value if is_grid(declared.get(key), value) else [value])
            ]
        elif key == next(iter(drawn)):
            points = zip(*drawn.values(), strict=True)
            options[key] = [dict(zip(drawn, point, strict=True)) for point in points]
    return options


def check_size(
    declared: Mapping[str, fields.Field], values: Mapping[str, Any], most: int, location: Location
) -> None:
    """Raise `ConfigError` if a grid has more than ``most`` points, before any of them is made."""
    points = math.prod(map(len, _options(declared, values).values()))
    if points > most:
        raise too_many(points, "points", most, location)


def too_many(count: int, what: str, most: int, location: Location) -> ConfigError:
    """The error for more than a study said that it may have."""
    allowed = f"{most:,} runs of a study at most; `max_runs: {count}` in the study allows more"
    return ConfigError(location, f"{count:,} {what} are asked for", allowed)


def each_once(
    declared: Mapping[str, fields.Field], values: Mapping[str, Any], location: Location
) -> None:
    """Raise `ConfigError` if a grid has a value twice, which would be one run and not two."""
    for key, value in values.items():
        if is_grid(declared.get(key), value) and not isinstance(value, SearchedValues):
            i = second_occurrence(value)
            if i is not None:
                raise ConfigError(location / key / i, f"{value[i]} stands twice", "each value once")


def is_grid(declared: fields.Field | None, value: Any) -> bool:
    """Whether ``value`` is a list of values for what is ``declared``."""
    if not isinstance(value, list) or not value:
        return False
    if declared is not None and fields.is_sequence(declared.hint):
        return all(isinstance(item, list) for item in value)
    return True


DIGITS = 3
"""Of a drawn value, so that tables can show it as it is."""
TRIES = 100
"""Numbers for each draw, among which are values that come again."""


@dataclass(frozen=True)
class Search:
    """How the values of a key are drawn.

    Attributes:
        draws: How many; the drawn keys of an entry have as many, and are drawn together.
        uniform: From where to where, both ends included.
        log_uniform: The same, of the value's logarithm.
    """

    draws: fields.Count
    uniform: list[float] | None = None
    log_uniform: list[float] | None = None


def with_searched_values(
    declared: Mapping[str, fields.Field], values: Mapping[str, Any], seed: int, location: Location
) -> dict[str, Any]:
    """The values, with what is drawn for the keys that ask for it.

    The i-th draw of a key follows from the seed and the key's name: it is the same in every entry,
    and more draws go on from the first ones.

    Raises:
        ConfigError: For a search that is not understood, for keys of one entry that are drawn
            different numbers of times, and for a key whose values are no such numbers.
    """
    settled, counts = dict(values), dict[str, int]()
    for key, value in values.items():
        if key not in declared or not _is_search(value):
            continue
        at = location / key
        search = Search(**fields.parse(Search, value, at))
        settled[key] = SearchedValues(_searched_values(search, seed, key, at))
        try:
            fields.value(declared[key].hint, settled[key][0], at)
        except ConfigError as error:
            allowed = fields.describe(declared[key].hint)
            problem = f"is drawn, and {settled[key][0]!r} cannot be"
            raise ConfigError(at, problem, f"a list of values; each {allowed}") from error
        counts[key] = search.draws
        first, count = next(iter(counts.items()))
        if search.draws != count:
            problem = f"is {search.draws}, and {count} for {first}, which is drawn together with it"
            raise ConfigError(at / "draws", problem, f"{count}")
    return settled


def _is_search(value: Any) -> bool:
    return isinstance(value, Mapping) and bool({*fields.fields(Search)} & {*value})


def _searched_values(search: Search, seed: int, key: str, location: Location) -> list[float]:
    given = {"uniform": search.uniform, "log_uniform": search.log_uniform}
    kinds = {kind: ends for kind, ends in given.items() if ends is not None}
    if len(kinds) != 1:
        raise ConfigError(
            location, f"has {len(kinds)} distributions", "one of uniform, log_uniform"
        )
    [(kind, ends)] = kinds.items()
    logs, at = kind == "log_uniform", location / kind
    if len(ends) != 2 or not ends[0] < ends[1] or (logs and ends[0] <= 0):
        allowed = "two numbers, the lower one first" + (", above 0" if logs else "")
        raise ConfigError(at, f"is {ends!r}", allowed)
    low, high = map(math.log, ends) if logs else ends
    numbers = low + (high - low) * rng.generator(seed, "search", key).random(TRIES * search.draws)
    exact = np.exp(numbers) if logs else numbers
    short = (min(max(float(f"{value:.{DIGITS}g}"), ends[0]), ends[1]) for value in exact)
    # A value that comes again would be a run that is there.
    values = list(itertools.islice(dict.fromkeys(short), search.draws))
    if len(values) < search.draws:
        problem = f"is {ends!r}, in which {search.draws} values of {DIGITS} digits were not found"
        raise ConfigError(at, problem, "ends that lie further apart, or fewer draws")
    return values


ONE = "aggregation"
"""The key of which an entry has one; its name may stand alone."""
RESERVED = (
    *("method", "start", "train_on", "title", "execution", "dataset", "partition"),
    *map(entry_key, ADDED),
)
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
    merged = with_searched_values(declared, merged, study.search_seed, at)
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
            specs[kind].append(
                {"name": name, **added_entry.parse(its, at / entry_key(kind) / name)}
            )
        yield Point(entry, hyper, specs, settled, {key: values[key] for key in several})


def _added(
    merged: Mapping[str, Any], at: Location
) -> dict[str, tuple[str, Component, Mapping[str, Any]]]:
    """What an entry adds, by name: the config key, its kind, and the keys that the entry sets of
    it.
    """
    by_name: dict[str, tuple[str, Component, Mapping[str, Any]]] = {}
    for kind, called in ADDED.items():
        location = at / entry_key(kind)
        given = merged.get(entry_key(kind))
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
                problem = f"{name!r} is set in {entry_key(by_name[name][0])} too"
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
    layer = with_searched_values(declared, layer, study.search_seed, location)
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
