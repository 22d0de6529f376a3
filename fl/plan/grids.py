"""A list where one value is expected is a grid; keys that are drawn go through it together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

from fl.base import fields
from fl.base.errors import ConfigError, Location


def grid(
    declared: Mapping[str, fields.Field], values: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Every combination of the values that are lists where one value is expected."""
    options = _options(declared, values)
    for combination in itertools.product(*options.values()):
        chosen = {key: value for values in combination for key, value in values.items()}
        yield {key: chosen[key] for key in values}


class Draws(list[float]):
    """The values that are drawn for a key: the i-th ones of an entry's keys are one point."""


def _options(
    declared: Mapping[str, fields.Field], values: Mapping[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """By key, or for all that are drawn at the first of them, what a point may have."""
    options: dict[str, list[dict[str, Any]]] = {}
    drawn = {key: value for key, value in values.items() if isinstance(value, Draws)}
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
        if is_grid(declared.get(key), value) and not isinstance(value, Draws):
            i = second(value)
            if i is not None:
                raise ConfigError(location / key / i, f"{value[i]} stands twice", "each value once")


def second(values: Iterable[Any]) -> int | None:
    """The place of the first value that occurred before, None if each occurs once."""
    seen = set()
    for i, value in enumerate(values):
        key = _hashable(value)
        if key in seen:
            return i
        seen.add(key)
    return None


def _hashable(value: Any) -> Hashable:
    if isinstance(value, Mapping):
        return frozenset((key, _hashable(inner)) for key, inner in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def is_grid(declared: fields.Field | None, value: Any) -> bool:
    """Whether ``value`` is a list of values for what is ``declared``."""
    if not isinstance(value, list) or not value:
        return False
    if declared is not None and fields.is_sequence(declared.hint):
        return all(isinstance(item, list) for item in value)
    return True
