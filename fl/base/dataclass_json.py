"""Dataclasses as JSON: `as_json` writes what `from_json` reads, for plans, bundles and records.

msgspec (0.22) refuses a union of two dataclasses, as of a record's costs, and cattrs (26.2) unions
of text and numbers; each would be one more package on machines that only train.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, TypeVar

Class = TypeVar("Class")

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
"""A value that JSON can hold."""


def as_json(content: Any) -> Any:
    """Return ``content`` as JSON reads it: lists for tuples, mappings for dataclasses."""
    return json.loads(json.dumps(content, default=_members))


def _members(item: Any) -> dict[str, object]:
    return {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}


def from_json(target: type[Class], content: Mapping[str, Json]) -> Class:
    """Return the dataclass that `as_json` wrote.

    Values are not checked. Keys that the dataclass does not declare are left out, and keys that
    are missing have its defaults, so that files of earlier and later versions can be read.
    """
    hashable: Any = target
    readers = _readers(hashable)
    values: dict[str, object] = {}
    for name, value in content.items():
        if name in readers:
            read = readers[name]
            values[name] = value if read is None else read(value)
    return target(**values)


Reader = Callable[[Any], Any]


@cache
def _readers(target: Any) -> dict[str, Reader | None]:
    """Return a function for each field whose JSON differs from its value, and None for others."""
    hints = typing.get_type_hints(target)
    return {field.name: _reader(hints[field.name]) for field in dataclasses.fields(target)}


def _reader(hint: Any) -> Reader | None:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if _is_dataclass(hint):
        return partial(from_json, hint)
    if origin in (typing.Union, types.UnionType):
        options = [option for option in args if _is_dataclass(option)]
        return partial(_most_similar, options) if options else None
    if origin not in (list, tuple, dict):
        return None
    read = _reader(args[1] if origin is dict else args[0])
    if read is None:
        return tuple if origin is tuple else None
    if origin is dict:
        return lambda values: {key: read(value) for key, value in values.items()}
    return lambda values: origin(map(read, values))


def _is_dataclass(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def _most_similar(options: list[type], content: Any) -> Any:
    """Return the dataclass of a union that declares most of the keys; other values stay."""
    if not isinstance(content, dict):
        return content
    target = max(options, key=lambda option: len(content.keys() & _readers(option).keys()))
    return from_json(target, content)
