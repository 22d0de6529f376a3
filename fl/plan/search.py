"""A search of hyper-parameters: distributions of keys, and the studies of its trials.

The key ``search`` of a study mirrors its ``training`` and ``methods``, with distributions in place
of values. The trials of all entries are points of one ordinary study, whose keys go through their
values together (`fl.plan.grids`); the chosen ones are those of another.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from fl.base import fields
from fl.base.errors import ConfigError, ConfigProblems, Location, unknown_name
from fl.plan import config
from fl.plan.config import Search, Values
from fl.plan.grids import LOG_UNIFORM, SIGNIFICANT_DIGITS, TOGETHER, check_ends, too_many
from fl.plan.overrides import PlacedLocation
from fl.plan.study_plan import StudyPlan

KeyPath = tuple[str, ...]
"""Path of a key in an entry: ``("lr",)``, ``("terms", "mk-mmd", "mu")``."""
Point = Mapping[KeyPath, Any]
"""Values of keys of an entry."""

ROUNDS: KeyPath = ("rounds",)
UNIFORM, INTEGER, CHOICE = "uniform", "integer", "choice"
DISTRIBUTIONS = {
    UNIFORM: list[float],
    LOG_UNIFORM: list[float],
    INTEGER: list[int],
    CHOICE: list[Any],
}
"""Types of the values behind the name of each distribution."""
FORMS = "{log_uniform: [1e-4, 1]}, {uniform: [0, 1]}, {integer: [1, 5]}, {choice: [a, b]}"
EXAMPLE = "search: {trials: 20, training: {lr: {log_uniform: [0.001, 1]}}}"
RUNGS = (9, 3, 1)
"""Divisors of the rounds of a trial, after which a pruner decides."""
INNER = 0.382
"""Place in a range of a number that is not whole, with which a range is tried."""


class Distribution(NamedTuple):
    """The distribution of a key.

    Attributes:
        path: Path of the key in its entry.
        kind: Name of the distribution.
        values: Its ends, or what it chooses from.
        location: Location of the key in ``search``.
    """

    path: KeyPath
    kind: str
    values: list[Any]
    location: Location

    @property
    def key(self) -> str:
        """The key as points of a study have it, ``mk-mmd.mu``."""
        return key_of(self.path)

    def samples(self) -> list[Any]:
        """Return values that must be right if all are: the ends, and one between them."""
        if self.kind in (CHOICE, INTEGER):
            return self.values
        low, high = self.values
        return [low, low + INNER * (high - low), high]

    def rounded(self, number: float) -> float:
        """Return a drawn number with `SIGNIFICANT_DIGITS`, within the ends."""
        if self.kind == INTEGER:
            return number
        low, high = self.values
        return float(min(max(float(f"{number:.{SIGNIFICANT_DIGITS}g}"), low), high))


class SearchSpace(NamedTuple):
    """Searched keys of a study.

    Attributes:
        search: The key ``search``.
        entries: The distributions of each searched entry.
        rounds: Numbers of rounds of each of these after which it may end, the last one in full.
    """

    search: Search
    entries: Mapping[str, list[Distribution]]
    rounds: Mapping[str, list[int]]


def key_of(path: KeyPath) -> str:
    """Return the key of a path as points of a study have it: ``lr``, ``mk-mmd.mu``."""
    return ".".join(path[-2:])


def distributions(
    search: Search, methods: Mapping[str, Values], training: Values, location: Location
) -> dict[str, list[Distribution]]:
    """Return the distributions of each entry that is searched.

    Args:
        search: The key ``search`` of a study.
        methods: The study's entries.
        training: Its keys of training.
        location: Location of ``search``.

    Raises:
        ConfigError: For what is no distribution, for a key that has a grid, for an entry that is
            not searched, and for one whose trials others would start from; all at once.
    """
    problems = ConfigProblems()
    common = [*_read(search.training, location / "training", problems)]
    is_common_wrong = bool(problems.errors)
    by_entry: dict[str, list[Distribution]] = {}
    for label in search.methods.keys() - methods.keys():
        place = location / "methods" / label
        problems.errors.append(unknown_name(place, "entry of this study", label, methods))
    starts = {
        str(entry[key]): label
        for label, entry in methods.items()
        for key in ("start", "train_on")
        if key in entry
    }
    for label, entry in methods.items():
        errors = len(problems.errors)
        of_entry = [*_read(search.methods.get(label), location / "methods" / label, problems)]
        searched = {d.path: d for d in (*common, *of_entry)}
        place = location / "methods" / label
        if label in starts and searched:
            problem = f"{starts[label]} starts from it, once for each of its trials"
            advice = f"two studies: in the second, {label} has its chosen values, and the entries "
            advice += "that start from it are searched, each under `search: methods:`"
            problems.errors.append(ConfigError(place, problem, advice=advice))
        elif not searched and (is_common_wrong or len(problems.errors) > errors):
            continue  # What is searched of it is mistyped.
        elif not searched and label not in starts:
            problem = "has no searched key, but all entries get the same number of trials"
            problems.errors.append(ConfigError(place, problem, FORMS, EXAMPLE))
        elif searched:
            by_entry[label] = [*searched.values()]
        for distribution in searched.values():
            with problems.collected():
                _check_single(distribution, {**training, **entry}, label)
    problems.raise_all()
    return by_entry


def _read(
    values: Any, location: Location, problems: ConfigProblems, path: KeyPath = ()
) -> Iterator[Distribution]:
    """Yield the distributions in a mapping of keys, which may be keys of terms and others."""
    for key, value in fields.mapping(values, location).items():
        place, inner = location / key, (*path, key)
        with problems.collected():
            if not isinstance(value, Mapping) or not value:
                raise ConfigError(place, f"is {value!r}, which is no distribution", FORMS)
            kinds = DISTRIBUTIONS.keys() & value.keys()
            if not kinds:
                yield from _read(value, place, problems, inner)
                continue
            [kind, *surplus] = value
            if surplus:
                raise ConfigError(place, f"has {' and '.join(value)}", "one distribution")
            drawn = fields.value(DISTRIBUTIONS[kind], value[kind], place / kind)
            if kind != CHOICE:
                check_ends(kind, drawn, place / kind)
            elif len(drawn) < 2 or config.second_occurrence(drawn) is not None:
                allowed = "two values or more, each once"
                raise ConfigError(place / kind, f"is {drawn!r}", allowed)
            yield Distribution(inner, kind, drawn, place)


def _check_single(distribution: Distribution, entry: Values, label: str) -> None:
    """Raise `ConfigError` if a searched key has a grid in the study."""
    value: Any = entry
    for step in distribution.path:
        value = value.get(step) if isinstance(value, Mapping) else None
    lists = distribution.kind == CHOICE and all(isinstance(v, list) for v in distribution.values)
    if isinstance(value, list) and (not lists or all(isinstance(v, list) for v in value)):
        problem = f"is searched, but the study has the grid {value!r} for it ({label})"
        advice = f"one value there, or here {{choice: {value!r}}}"
        raise ConfigError(distribution.location, problem, advice=advice)


def placed(entry: Values, point: Point) -> Values:
    """Return an entry with values of a point in place of its own."""
    for path, value in point.items():
        entry = _placed(entry, path, value)
    return entry


def _placed(values: Any, path: KeyPath, value: Any) -> Values:
    values = values if isinstance(values, Mapping) else {}
    inner = _placed(values.get(path[0]), path[1:], value) if path[1:] else value
    return {**values, path[0]: inner}


def with_points(
    methods: Mapping[str, Values], points: Iterable[tuple[str, Point]]
) -> dict[str, Values]:
    """Return entries with all their points, whose keys go through their values together.

    Args:
        methods: The entries.
        points: Points with the label of their entry; those of an entry have the same keys.
    """
    of_entry: dict[str, list[Point]] = {}
    for label, point in points:
        of_entry.setdefault(label, []).append(point)
    return {
        label: placed(
            entry,
            {p: {TOGETHER: [point[p] for point in of_entry[label]]} for p in of_entry[label][0]},
        )
        if label in of_entry
        else entry
        for label, entry in methods.items()
    }


def sample_points(entries: Mapping[str, list[Distribution]]) -> list[tuple[str, Point]]:
    """Return points of all entries that are right if all points are; at least two of each."""
    points: list[tuple[str, Point]] = []
    for label, searched in entries.items():
        count = max(len(distribution.samples()) for distribution in searched)
        values = [itertools.islice(itertools.cycle(d.samples()), count) for d in searched]
        paths = [distribution.path for distribution in searched]
        points += [
            (label, dict(zip(paths, drawn, strict=True))) for drawn in zip(*values, strict=True)
        ]
    return points


def placed_location(
    location: Location, entries: Mapping[str, list[Distribution]]
) -> PlacedLocation:
    """Return the location of a study in which errors of searched keys are located in ``search``."""
    words = {
        ".".join(("methods", label, *distribution.path)): (location.file, distribution.location.key)
        for label, searched in entries.items()
        for distribution in searched
    }
    return PlacedLocation(location.file, words=words)


def search_space(
    search: Search,
    entries: Mapping[str, list[Distribution]],
    plan: StudyPlan,
    location: Location,
    max_runs: int,
) -> SearchSpace:
    """Return what is searched, after the study of `sample_points` was planned.

    Args:
        search: The key ``search``.
        entries: The distributions of each searched entry.
        plan: The plan of the study of their sample points.
        location: Location of ``search``.
        max_runs: Largest number of runs of a study.

    Raises:
        ConfigError: For a study of several settings, for an entry that has a grid beside its
            searched keys, and for too many runs.
    """
    if len(plan.settings) > 1:
        problem = f"is of one setting, but the study has {len(plan.settings)}"
        advice = "a study for each data set, partition and model; seeds of them may be several"
        raise ConfigError(location, problem, advice=advice)
    problems = ConfigProblems()
    rounds: dict[str, list[int]] = {}
    n_runs = 0
    for label, searched in entries.items():
        runs = [run for run in plan.runs if run.method == label]
        keys = {distribution.key for distribution in searched}
        for key in dict.fromkeys(key for run in runs for key in run.point if key not in keys):
            problem = f"{key} has a grid in {label}, beside the keys that are searched"
            advice = f"one value there, or here {key}: {{choice: [...]}}"
            problems.errors.append(ConfigError(location, problem, advice=advice))
        full = max(plan.entries[label].training["rounds"])
        divisors = RUNGS if search.pruner != "none" else (1,)
        rounds[label] = [*dict.fromkeys(math.ceil(full / divisor) for divisor in divisors)]
        if search.pruner != "none" and ROUNDS in {distribution.path for distribution in searched}:
            problem, allowed = f"is {search.pruner}, but rounds are searched", "none"
            problems.errors.append(ConfigError(location / "pruner", problem, allowed))
        seeds = len({(run.dataset, run.partition, run.spec["seed"]) for run in runs})
        n_runs += search.trials * seeds * len(rounds[label])
    if n_runs > max_runs:
        problems.errors.append(too_many(n_runs, "runs", max_runs, location / "trials"))
    problems.raise_all()
    return SearchSpace(search, entries, rounds)
