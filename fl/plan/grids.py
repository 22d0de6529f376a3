"""From a method entry of a study to its points: grids, random search, defaults.

A list where one value is expected is a grid. A key with a distribution is searched at random:
``lr: {log_uniform: [1e-4, 1], draws: 8}``. Keys that are searched go through their values together,
and so do keys of which each value is given: ``lr: {together: [0.1, 0.5]}``.

J. Bergstra and Y. Bengio. Random Search for Hyper-Parameter Optimization. JMLR 2012.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fl.api.training import Training, contradictions, idle_keys, with_derived_defaults
from fl.base import fields, registry, rng
from fl.base.errors import ConfigError, ConfigProblems, Location
from fl.base.fields import Field
from fl.base.hashes import digest
from fl.base.registry import ADDED_KINDS, Component, entry_key
from fl.base.specs import ComponentSpec
from fl.base.units import config_text
from fl.plan.config import Draft, Study, Values, second_occurrence, unknown_key
from fl.plan.published_tables import published_values

SIGNIFICANT_DIGITS = 3
"""Digits of a value of a random search, so that tables can show it as it is."""
LOG_UNIFORM = "log_uniform"
"""Distribution of a number whose logarithm is uniformly distributed."""
TOGETHER = "together"
"""Key over the values of a key that goes through them together with others."""
TRIES = 100
"""Random numbers for each value of a search; repeated ones are left out."""
SINGLE = ("aggregation", "devices", "selection", "asynchronous")
"""Keys of an entry that hold one component, whose name may be their value."""
RESERVED = (
    *("method", "start", "train_on", "title", "execution", "dataset", "partition"),
    *map(entry_key, ADDED_KINDS),
)
"""Keys of an entry that are neither hyper-parameters nor keys of training."""

EXCLUSIVE = ("local_epochs", "local_steps")
"""Keys of training of which an entry sets one."""


def grid(declared_fields: Mapping[str, Field], values: Values) -> Iterator[Values]:
    """Yield every combination of the values that are lists where one value is expected."""
    options = _options(declared_fields, values)
    for combination in itertools.product(*options.values()):
        chosen = {key: value for point in combination for key, value in point.items()}
        yield {key: chosen[key] for key in values}


class SearchedValues(list[Any]):
    """Values of a random search, or given ones: the i-th values of all such keys are one point."""


def _options(declared_fields: Mapping[str, Field], values: Values) -> dict[str, list[Values]]:
    """Return the alternatives of each key; those of all searched keys stand at the first one."""
    options: dict[str, list[Values]] = {}
    searched = {key: value for key, value in values.items() if isinstance(value, SearchedValues)}
    for key, value in values.items():
        if key not in searched:
            alternatives = value if is_grid(declared_fields.get(key), value) else [value]
            options[key] = [{key: alternative} for alternative in alternatives]
        elif key == next(iter(searched)):
            points = zip(*searched.values(), strict=True)
            options[key] = [dict(zip(searched, point, strict=True)) for point in points]
    return options


def check_size(
    declared_fields: Mapping[str, Field], values: Values, max_points: int, location: Location
) -> None:
    """Raise `ConfigError` if a grid has more than ``max_points``, before any of them is made."""
    points = math.prod(map(len, _options(declared_fields, values).values()))
    if points > max_points:
        raise too_many(points, "points", max_points, location)


def too_many(count: int, unit: str, limit: int, location: Location) -> ConfigError:
    """Return the error for more runs or points than a study may have."""
    problem = f"{count:,} {unit} are asked for"
    allowed = f"{limit:,} runs of a study at most"
    return ConfigError(location, problem, allowed, f"`max_runs: {count}` in the study")


def check_distinct(
    declared_fields: Mapping[str, Field], values: Values, location: Location
) -> None:
    """Raise `ConfigError` if a grid has a value twice, which would be one run and not two."""
    for key, value in values.items():
        if is_grid(declared_fields.get(key), value) and not isinstance(value, SearchedValues):
            i = second_occurrence(value)
            if i is not None:
                problem = f"{value[i]} is a duplicate"
                raise ConfigError(location / key / i, problem, advice="each value once")


def is_grid(declared_fields: Field | None, value: Any) -> bool:
    """Whether ``value`` is a list of values of a field."""
    if not isinstance(value, list) or not value:
        return False
    if declared_fields is not None and fields.is_sequence(declared_fields.hint):
        return all(isinstance(item, list) for item in value)
    return True


@dataclass(frozen=True)
class Search:
    """A random search over the values of a key.

    Attributes:
        draws: Number of values; all searched keys of an entry have as many, and go together.
        uniform: Lowest and highest value.
        log_uniform: Lowest and highest value, for a logarithm that is uniformly distributed.
    """

    draws: fields.Count
    uniform: list[float] | None = None
    log_uniform: list[float] | None = None


def with_searched_values(
    declared_fields: Mapping[str, Field], values: Values, seed: int, location: Location
) -> Values:
    """Return the values with those of a random search, or given together, for keys that have such.

    The i-th value of a key follows from the seed and the key's name: it is the same in every entry,
    and a longer search begins with the values of a shorter one.

    Raises:
        ConfigError: For a search that is not understood, for keys of one entry with different
            numbers of values, and for a key whose values are no such numbers.
    """
    completed, counts = dict(values), dict[str, int]()
    for key, value in values.items():
        if key not in declared_fields or not _is_search(value):
            continue
        key_location = location / key
        if TOGETHER in value:
            count_location = key_location / TOGETHER
            completed[key] = _given_values(value, count_location)
        else:
            count_location = key_location / "draws"
            search = Search(**fields.parse(Search, value, key_location))
            completed[key] = SearchedValues(_searched_values(search, seed, key, key_location))
            try:
                fields.value(declared_fields[key].hint, completed[key][0], key_location)
            except ConfigError as error:
                problem = f"is searched at random, and cannot be {completed[key][0]!r}"
                allowed = f"a list of values; each {fields.describe(declared_fields[key].hint)}"
                raise ConfigError(key_location, problem, allowed) from error
        counts[key] = len(completed[key])
        first, count = next(iter(counts.items()))
        if counts[key] != count:
            problem = f"is {counts[key]}, and {count} for {first}, which is searched together "
            raise ConfigError(count_location, problem + "with it", f"{count}")
    return completed


def _is_search(value: Any) -> bool:
    return isinstance(value, Mapping) and bool({*fields.fields(Search), TOGETHER} & {*value})


def _given_values(value: Values, location: Location) -> SearchedValues:
    """Return the values of a key that goes through them together with others."""
    if [*value] != [TOGETHER] or not isinstance(value[TOGETHER], list) or not value[TOGETHER]:
        allowed = f"{{{TOGETHER}: a list of values}}, as many for each such key of an entry"
        raise ConfigError(location, f"is {value!r}", allowed)
    return SearchedValues(value[TOGETHER])


def check_ends(name: str, ends: Sequence[float], location: Location) -> None:
    """Raise `ConfigError` for what are no ends of a distribution with a name."""
    is_log = name == LOG_UNIFORM
    if len(ends) != 2 or not ends[0] < ends[1] or (is_log and ends[0] <= 0):
        allowed = "two numbers, the lower one first" + (", above 0" if is_log else "")
        raise ConfigError(location, f"is {ends!r}", allowed)


def _searched_values(search: Search, seed: int, key: str, location: Location) -> list[float]:
    """Return the values of a random search, rounded to `SIGNIFICANT_DIGITS`, each once."""
    bounds = {"uniform": search.uniform, "log_uniform": search.log_uniform}
    chosen = {name: ends for name, ends in bounds.items() if ends is not None}
    if len(chosen) != 1:
        problem = f"has {len(chosen)} distributions"
        raise ConfigError(location, problem, "one of uniform, log_uniform")
    [(name, ends)] = chosen.items()
    is_log, location = name == LOG_UNIFORM, location / name
    check_ends(name, ends, location)
    low, high = map(math.log, ends) if is_log else ends
    numbers = low + (high - low) * rng.generator(seed, "search", key).random(TRIES * search.draws)
    exact = np.exp(numbers) if is_log else numbers
    rounded = (float(f"{value:.{SIGNIFICANT_DIGITS}g}") for value in exact)
    inside = (min(max(value, ends[0]), ends[1]) for value in rounded)
    values = list(itertools.islice(dict.fromkeys(inside), search.draws))
    if len(values) < search.draws:
        problem = f"is {ends!r}, which has fewer than {search.draws} values of "
        problem += f"{SIGNIFICANT_DIGITS} digits"
        raise ConfigError(location, problem, advice="ends that lie further apart, or fewer draws")
    return values


@dataclass(frozen=True)
class Point:
    """A method entry of a study at one point of its grid.

    Attributes:
        component: The method.
        values: Values of its hyper-parameters.
        added_components: Specs of the terms, alterations and others that the entry adds, by key.
        training: Values of all keys of training.
        grid: Values of the keys that the entry's grid varies.
    """

    component: Component
    values: Values
    added_components: Mapping[str, list[ComponentSpec]]
    training: Values
    grid: Values

    @property
    def spec(self) -> ComponentSpec:
        """The spec of the method, as runs have it."""
        return {"name": self.component.name, **self.values}

    @cached_property
    def key(self) -> str:
        """Hash of all that the entry says of runs at this point."""
        return digest([self.spec, self.added_components, self.training])


class Layer(NamedTuple):
    """Keys that a study, a method's file or an entry sets, and their location.

    ``wrong_keys`` are keys whose value is not known, as it is wrong or stands under a misspelt
    name.
    """

    values: Values
    location: Location
    wrong_keys: frozenset[str] = frozenset()


class EntryLayers(NamedTuple):
    """The layers of a method entry; a later one wins.

    ``top`` has the key ``devices`` of the study, if it has one, ``study`` its ``training``.
    """

    top: Layer
    study: Layer
    method: Layer
    entry: Layer

    @property
    def wrong_keys(self) -> frozenset[str]:
        """The keys whose value is not known."""
        return frozenset[str]().union(*(layer.wrong_keys for layer in self))

    def location_of(self, key: str) -> Location:
        """Return the location of a key: in the last layer that sets it, else in the entry."""
        locations = (layer.location for layer in reversed(self) if key in layer.values)
        return next(locations, self.entry.location) / key

    def error(
        self, key: str, others: Sequence[str], problem: str, allowed: str = "", advice: str = ""
    ) -> ConfigError:
        """Return the error of a key that contradicts others, at the last layer that sets it.

        Args:
            key: The key.
            others: The keys that it contradicts. If the study sets the key, and the entry or its
                method one of these, the message names the entry.
            problem: What is wrong.
            allowed: The values that would be allowed.
            advice: What to do about it.
        """
        own_keys = {*self.method.values, *self.entry.values}
        if key not in own_keys and not own_keys.isdisjoint(others):
            problem += f" ({self.entry.location.key})"
        return ConfigError(self.location_of(key), problem, allowed, advice)


def points(
    folder: Path,
    draft: Draft,
    label: str,
    component: Component,
    layers: EntryLayers,
    problems: ConfigProblems,
) -> list[Point]:
    """Return all points of a method entry; none if they cannot be known.

    Args:
        folder: The config folder.
        draft: The study.
        label: Label of the entry.
        component: The entry's method.
        layers: The right keys of the study, of its ``training``, of the method's defaults and of
            the entry (`checked_layers`).
        problems: Collects what is wrong with the entry; nothing that a wrong key may have caused.
    """
    study, own_location = draft.study, layers.entry.location
    hyper_fields, training_fields = fields.fields(component.target), fields.fields(Training)
    declared_fields = {**training_fields, **hyper_fields}
    fixed = getattr(component.target, "training", {})
    merged = _merged(
        *(layers.top.values, layers.study.values, fixed, layers.method.values, layers.entry.values)
    )
    error_count = len(problems.errors)
    added_components, added_values = _added_components(study, merged, layers, problems)
    merged = {key: value for key, value in merged.items() if key not in RESERVED}
    required = {key for key, field in hyper_fields.items() if field.default is fields.REQUIRED}
    is_known = (
        len(problems.errors) == error_count and not layers.wrong_keys & required - merged.keys()
    )
    for name, added_component in added_components.items():
        declared_fields |= _prefixed(name, fields.fields(added_component.target))
    merged |= added_values
    try:
        published = published_values(folder, draft, label, declared_fields)
        if published is None:
            return []
        merged |= published
        merged = with_searched_values(declared_fields, merged, study.search_seed, own_location)
        check_size(declared_fields, merged, study.max_runs, own_location)
    except ConfigError as error:
        problems.errors.append(error)
        return []
    varied = [k for k, v in merged.items() if is_grid(declared_fields.get(k), v) and len(v) > 1]
    trainings: list[dict[str, Any]] = []
    entry_points: list[Point] = []
    for values in grid(declared_fields, merged):
        hyper = {key: value for key, value in values.items() if key in hyper_fields}
        training = {key: value for key, value in values.items() if key in training_fields}
        with problems.collected():
            training = with_derived_defaults(fields.parse(Training, training, own_location))
            trainings.append(training)
            if is_known:
                entry_points.append(
                    Point(
                        component=component,
                        values=component.parse(hyper, own_location),
                        added_components=_added_specs(added_components, values, own_location),
                        training=training,
                        grid={key: values[key] for key in varied},
                    )
                )
    has_devices = any(added.kind == "devices" for added in added_components.values())
    _check_training_keys(trainings, varied, layers, has_devices, problems)
    return entry_points


def _check_training_keys(
    trainings: Sequence[Values],
    varied: Sequence[str],
    layers: EntryLayers,
    has_devices: bool,
    problems: ConfigProblems,
) -> None:
    """Collect training keys of an entry that contradict each other, or have no effect.

    Args:
        trainings: The keys of each of its points.
        varied: The keys that its grid varies.
        layers: The layers that set the keys; nothing is told that a wrong key may have caused.
        has_devices: Whether clients have devices, which exclude stragglers of any kind.
        problems: Collects what is wrong.
    """
    for training in trainings:
        for found in contradictions(training):
            if has_devices and found.key == "stragglers":
                continue  # `fl.api.training.check_participation` refuses them.
            if layers.wrong_keys.isdisjoint({found.key, *found.others}):
                key, others = found.key, found.others
                error = layers.error(key, others, found.problem, found.allowed, found.advice)
                problems.errors.append(error)
    problems.errors += _idle_keys(trainings, varied, layers)


def _idle_keys(
    trainings: Sequence[Values], varied: Sequence[str], layers: EntryLayers
) -> list[ConfigError]:
    """Return the errors of training keys without effect, which would only rename runs.

    Of a grid over other keys, a key with one value needs an effect at one point only. An entry may
    set aside what a key of the whole study needs, such as its optimizer.
    """
    errors: list[ConfigError] = []
    own_keys = layers.method.values.keys() | layers.entry.values.keys()
    idle = [idle_keys(Training(**training)) for training in trainings]
    for key, need in {key: need for keys in idle for key, need in keys.items()}.items():
        if not layers.wrong_keys.isdisjoint({key, *need.keys}):
            continue
        is_set_aside = key not in own_keys and not own_keys.isdisjoint(need.keys)
        if key in varied or (not is_set_aside and all(key in keys for keys in idle)):
            values = [t[key] for t, keys in zip(trainings, idle, strict=True) if key in keys]
            problem = f"is {config_text(values[0])}, but has no effect without {need.text}"
            advice = f"set {need.text}, or no {key}"
            errors.append(layers.error(key, need.keys, problem, advice=advice))
    return errors


def _added_components(
    study: Study, merged: Values, layers: EntryLayers, problems: ConfigProblems
) -> tuple[dict[str, Component], Values]:
    """Return the components that an entry adds, by name, and their right keys, ``<name>.<key>``."""
    by_name: dict[str, Component] = {}
    right_values: dict[str, Any] = {}
    for key, kind in ADDED_KINDS.items():
        key_location = layers.location_of(entry_key(key))
        components = merged.get(entry_key(key))
        if key in SINGLE and isinstance(components, str):
            components = {components: None}
        with problems.collected():
            if isinstance(components, list):
                allowed = (
                    "a mapping (name: its keys, or in Python a class); alternatives are entries of "
                    "their own"
                )
                raise ConfigError(key_location, f"is {components!r}", allowed)
            components = fields.mapping(components, key_location)
            if key in SINGLE and len(components) > 1:
                raise ConfigError(key_location, f"is {' and '.join(components)}", "one of them")
            for name, values in components.items():
                location = key_location / name
                with problems.collected():
                    component = registry.find(kind, name, location)
                    if name in by_name:
                        problem = f"{name!r} is set in {_entry_key(by_name[name])} too"
                        advice = "each name once, as keys go by it"
                        raise ConfigError(location, problem, advice=advice)
                    own_layer = Layer(fields.mapping(values, location), location)
                    declared_fields = fields.fields(component.target)
                    own_layer = checked_layer(study, own_layer, declared_fields, problems)
                    by_name[name] = component
                    right_values |= _prefixed(name, own_layer.values)
    return by_name, right_values


def _entry_key(component: Component) -> str:
    """Return the key of an entry under which a component is added."""
    return next(entry_key(key) for key, kind in ADDED_KINDS.items() if kind == component.kind)


def _added_specs(
    added_components: Mapping[str, Component], values: Values, location: Location
) -> dict[str, list[ComponentSpec]]:
    """Return the specs of what an entry adds at a point, by key of `ADDED_KINDS`."""
    specs: dict[str, list[ComponentSpec]] = {key: [] for key in ADDED_KINDS}
    keys = {kind: key for key, kind in ADDED_KINDS.items()}
    for name, component in added_components.items():
        key = keys[component.kind]
        own_values = {
            own_key: values[f"{name}.{own_key}"]
            for own_key in fields.fields(component.target)
            if f"{name}.{own_key}" in values
        }
        settled = component.parse(own_values, location / entry_key(key) / name)
        specs[key].append({"name": name, **settled})
    return specs


def _prefixed(name: str, values: Values) -> Values:
    """Return the keys of an added component as keys of its entry: ``<name>.<key>``."""
    return {f"{name}.{key}": value for key, value in values.items()}


def checked_layers(
    study: Study, component: Component, layers: EntryLayers, problems: ConfigProblems
) -> EntryLayers:
    """Return the right keys of the layers of an entry.

    Args:
        study: The study.
        component: The entry's method.
        layers: The layers; those of the study are checked already.
        problems: Collects what is wrong with the others.

    Raises:
        ConfigError: If the method cannot be used, as keys of its own are keys of every entry.
    """
    hyper_fields, training_fields = fields.fields(component.target), fields.fields(Training)
    for key in hyper_fields.keys() & {*training_fields, *RESERVED}:
        problem = f"the method {component.name!r} has a hyper-parameter with a key of every entry"
        advice = "rename it in the method's file"
        raise ConfigError(layers.entry.location / key, problem, advice=advice)
    declared_fields = {**training_fields, **hyper_fields}
    return EntryLayers(
        layers.top,
        layers.study,
        checked_layer(study, layers.method, declared_fields, problems, RESERVED),
        checked_layer(study, layers.entry, declared_fields, problems, RESERVED),
    )


def checked_layer(
    study: Study,
    layer: Layer,
    declared_fields: Mapping[str, Field],
    problems: ConfigProblems,
    reserved: Sequence[str] = (),
) -> Layer:
    """Return the right keys of a layer.

    Args:
        study: The study.
        layer: The layer.
        declared_fields: Its declared keys.
        problems: Collects what is wrong with the others.
        reserved: Keys whose values are checked elsewhere.
    """
    location, names = layer.location, (*declared_fields, *reserved)
    right_values: dict[str, Any] = {}
    wrong_keys = {*layer.wrong_keys, *fields.misspelt_keys(layer.values, names)}
    for key, value in layer.values.items():
        try:
            if key in declared_fields:
                _check_key(study, declared_fields[key], value, location)
            elif key not in reserved:
                raise unknown_key(location / key, key, names)
            right_values[key] = value
        except ConfigError as error:
            problems.errors.append(error)
            wrong_keys.add(key)
    if all(key in right_values for key in EXCLUSIVE):
        for point in grid(declared_fields, {key: right_values[key] for key in EXCLUSIVE}):
            with problems.collected():
                Training.settle(fields.parse(Training, point, location), location)
    return Layer(right_values, location, frozenset(wrong_keys))


def _check_key(study: Study, field: Field, value: Any, location: Location) -> None:
    """Raise `ConfigError` for a key with wrong values, all at once, or with too many of them."""
    declared_fields, values = {field.name: field}, {field.name: value}
    check_distinct(declared_fields, values, location)
    searched = with_searched_values(declared_fields, values, study.search_seed, location)
    check_size(declared_fields, searched, study.max_runs, location)
    problems = ConfigProblems()
    for point in grid(declared_fields, searched):
        with problems.collected():
            fields.value(field.hint, point[field.name], location / field.name)
    problems.raise_all()


def _merged(*layers: Values) -> Values:
    """Merge layers: later ones win; local work is replaced as a whole (`EXCLUSIVE`)."""
    merged: Values = {}
    for layer in layers:
        if any(key in layer for key in EXCLUSIVE):
            merged = {key: value for key, value in merged.items() if key not in EXCLUSIVE}
        merged = {**merged, **layer}
    return merged
