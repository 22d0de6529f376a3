"""A list where one value is expected is a grid."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from fl import fields


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


def is_grid(declared: fields.Field | None, value: Any) -> bool:
    """Whether ``value`` is a list of values for what is ``declared``."""
    if not isinstance(value, list) or not value:
        return False
    if declared is not None and fields.is_sequence(declared.hint):
        return all(isinstance(item, list) for item in value)
    return True
