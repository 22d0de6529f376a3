"""The data sets, partitions, models and analyses of a study, and what models see of a data set."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fl.base import fields, registry
from fl.base.errors import ConfigError, Location
from fl.base.registry import Component
from fl.data.modality import Modality
from fl.plan.grids import check_size, grid


@dataclass(frozen=True)
class Choice:
    """One data set, partition or model of a study, with every default filled in.

    Attributes:
        text: As the study wrote it, ``dirichlet(clients=8, alpha=0.3)``.
        at: Where it stands.
        content: Of a data set, the hashes of the user's own files that it reads
            (`fl.plan.own_files`).
        title: What reports call it instead of its text; it decides no number.
    """

    entry: Component
    values: dict[str, Any]
    text: str
    at: Location
    id: str = ""
    content: dict[str, str] = field(default_factory=dict)
    title: str = ""

    @property
    def spec(self) -> dict[str, Any]:
        """Its part of a run's spec."""
        content = {"content": self.content} if self.content else {}
        return {"name": self.entry.name, **self.values, **content}


def choices(kind: str, items: list[Any], location: Location, most: int) -> list[Choice]:
    """All points of the items ``name`` or ``{name: {key: value}}``, each with its grid.

    Raises:
        ConfigError: For an item that is not understood, whose values equal those of an earlier one,
            or whose grid has more than ``most`` points.
    """
    by_spec: dict[str, Choice] = {}
    called: dict[str, Choice] = {}
    settled = (_of_item(kind, item, location / i, most) for i, item in enumerate(items))
    for choice in itertools.chain.from_iterable(settled):
        key = json.dumps(choice.spec, sort_keys=True)
        if key in by_spec:
            problem = f"{choice.text} stands twice: {by_spec[key].at.key} is the same"
            raise ConfigError(choice.at, problem, f"each {kind} once")
        other = called.setdefault(choice.title or choice.text, choice)
        if other is not choice:
            problem = f"is {choice.title!r} for {other.text} and for {choice.text}"
            raise ConfigError(choice.at / "title", problem, "a title each, as `alpha = {alpha}`")
        by_spec[key] = choice
    return list(by_spec.values())


def choice(kind: str, item: Any, location: Location) -> Choice:
    """The only point of an item, ``name`` or ``{name: {key: value}}``.

    Raises:
        ConfigError: For an item that is not understood, or that is a grid.
    """
    return next(_of_item(kind, item, location, 1))


def _of_item(kind: str, item: Any, location: Location, most: int) -> Iterator[Choice]:
    if isinstance(item, Mapping) and len(item) == 1:
        ((name, given),) = item.items()
    elif isinstance(item, str):
        name, given = item, None
    else:
        raise ConfigError(location, f"is {item!r}", "a name, or one name with its keys")
    entry = registry.find(kind, str(name), location)
    at = location / name
    declared, given = fields.fields(entry.target), dict(fields.mapping(given, at))
    title = given.pop("title", "")
    check_size(declared, given, most, at)
    for values in grid(declared, given):
        settled = entry.parse(values, at)
        told = _title(title, settled, at / "title")
        yield Choice(entry, settled, _text(entry.name, values), at, title=told)


def _title(given: Any, values: Mapping[str, Any], location: Location) -> str:
    """A title with its ``{key}`` filled in."""
    allowed = f"text; in braces any of {', '.join(values) or 'no key'}"
    if not isinstance(given, str):
        raise ConfigError(location, f"is {given!r}", allowed)
    try:
        return " ".join(given.format_map(values).split())
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(location, f"is {given!r}: {error!r}", allowed) from None


def _text(name: str, values: Mapping[str, Any]) -> str:
    inside = ", ".join(f"{key}={value}" for key, value in values.items())
    return f"{name}({inside})" if inside else name


@dataclass(frozen=True)
class Inputs:
    """What a model sees of a data set, or of its modality ``name``; see `fl.data.Dataset`.

    parts: where it sees several inputs of a sample; ``shape`` is then ().
    """

    name: str
    shape: tuple[int, ...]
    classes: int
    tokens: int
    parts: tuple[Modality, ...] = ()

    @property
    def kinds(self) -> tuple[Modality, ...]:
        """The several inputs of a sample, or its only one."""
        return self.parts or (Modality(self.name, "x", self.shape, self.tokens),)

    def tree(self, made: Callable[[Modality], Any]) -> Any:
        """What is made for each of several inputs, by name; for an only one, that itself."""
        if not self.parts:
            return made(self.kinds[0])
        return {kind.name: made(kind) for kind in self.parts}
