"""A list where one value is expected is a grid."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from fl import fields
from fl.errors import ConfigError, Where


def grid(
    declared: Mapping[str, fields.Field], values: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Every combination of the values that are lists where one value is expected."""
    options = {
        key: value if is_grid(declared.get(key), value) else [value]
        for key, value in values.items()
    }
    for combination in itertools.product(*options.values()):
        yield dict(zip(options, combination, strict=True))


def each_once(
    declared: Mapping[str, fields.Field], values: Mapping[str, Any], where: Where
) -> None:
    """Raise `ConfigError` if a grid has a value twice, which would be one run and not two."""
    for key, value in values.items():
        if is_grid(declared.get(key), value):
            for i, item in enumerate(value):
                if item in value[:i]:
                    raise ConfigError(where / key / i, f"{item} stands twice", "each value once")


def is_grid(declared: fields.Field | None, value: Any) -> bool:
    """Whether ``value`` is a list of values for what is ``declared``."""
    if not isinstance(value, list) or not value:
        return False
    if declared is not None and fields.is_sequence(declared.hint):
        return all(isinstance(item, list) for item in value)
    return True
