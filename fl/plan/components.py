"""Data sets, partitions, models and analyses of a study, and the user's own files behind data sets.

The content of the user's own files is part of a run's identity. There are three kinds: a file that
a data set reads in place, one that it has a ``file:`` address of, and, where no checksum is stated,
one that a person puts into ``data/raw`` or into a folder of ``sources:``. The last kind is also
compared with the lock file, whose entry is used when the file is gone. Downloaded files are not
considered here: before a download their content is unknown.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fl import data
from fl.base import fields, registry
from fl.base.errors import ConfigError, DataError, Location
from fl.base.files import is_folder
from fl.base.places import path_of
from fl.base.registry import Component
from fl.data import materials
from fl.data.contents import Contents, stamp
from fl.data.lock import Lock
from fl.data.modality import Modality
from fl.plan.grids import check_size, grid


@dataclass(frozen=True)
class Choice:
    """One data set, partition or model of a study, with every default filled in.

    Attributes:
        values: Values of all keys.
        written: Values of the keys that the study sets.
        at: Location in the config.
        content: Hashes of the user's own files that a data set reads (`fl.plan.components`).
        title_template: Title for reports, with ``{key}`` for the value of a key; it decides no
            number. Empty if the study gives none.
    """

    entry: Component
    values: dict[str, Any]
    written: dict[str, Any]
    at: Location
    id: str = ""
    content: dict[str, str] = field(default_factory=dict)
    title_template: str = ""

    @cached_property
    def text(self) -> str:
        """The component as the study writes it, ``dirichlet(clients=8, alpha=0.3)``."""
        return text_of(self.entry.name, self.written)

    @cached_property
    def title(self) -> str:
        """The user's title for reports; empty if the study gives none."""
        return filled(self.title_template, self.values)

    @cached_property
    def seed_keys(self) -> tuple[str, ...]:
        """The keys that are seeds: values of them are draws of one setting."""
        declared = fields.fields(self.entry.target).items()
        return tuple(key for key, key_field in declared if fields.is_seed(key_field.hint))

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
        _check_title(title, settled, at / "title")
        yield Choice(entry, settled, dict(values), at, title_template=title)


def _check_title(title: Any, values: Mapping[str, Any], location: Location) -> None:
    """Raise `ConfigError` unless the title is text whose ``{key}`` can be filled in."""
    allowed = f"text; in braces any of {', '.join(values) or 'no key'}"
    if not isinstance(title, str):
        raise ConfigError(location, f"is {title!r}", allowed)
    try:
        filled(title, values)
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(location, f"is {title!r}: {error!r}", allowed) from None


def filled(title_template: str, values: Mapping[str, Any]) -> str:
    """Return a title with its ``{key}`` filled in."""
    return " ".join(title_template.format_map(values).split())


def text_of(name: str, values: Mapping[str, Any]) -> str:
    """Return a component as a study may write it: its name, in brackets its keys."""
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


@dataclass(frozen=True)
class OwnFiles:
    """Finds the user's own files behind data sets.

    Attributes:
        root: The config's ``data``.
        origins: The config's ``sources``.
        lock: The lock file.
        watched: By path, the `stamp` of each file before it was read.
    """

    root: Path = Path("data")
    origins: Mapping[str, str] = field(default_factory=dict)
    lock: Path = Path("config/sources.lock.json")
    watched: dict[str, str] = field(default_factory=dict)

    def settle(self, choice: Choice) -> Choice:
        """A data set with the content of its files, and its id.

        Raises:
            ConfigError: For files of which no data set can be made, and for one that differs from
                the lock file.
        """
        _, dataset = registry.entry_of("data set", choice.spec)
        origin = self.origins.get(choice.entry.name)
        try:
            data.check_complete(dataset, choice.entry.name)
            users = data.own_files(dataset, origin)
            self._watch(dataset, users)
            contents = Contents(self.root)
            contents_by_name = {
                name: contents.of(files)
                for name, files in users.items()
                if all(path.exists() for path in files)
            }
            # A table is looked through for these, and tells what is wrong with it.
            _ = dataset.shape, dataset.classes, dataset.size, dataset.natural
        except DataError as error:
            raise ConfigError(choice.at, str(error)) from None
        locked = self._held(choice, dataset, origin)
        settled = replace(choice, content={**contents_by_name, **locked})
        return replace(settled, id=materials.dataset_id(settled.spec))

    def _held(self, choice: Choice, dataset: data.Dataset, origin: str | None) -> dict[str, str]:
        """The content of the files that the lock file has an entry for."""
        name, users, by_source = data.raw_name(choice.spec), data.own_files(dataset, origin), {}
        lock = Lock(self.lock, name)
        for source in data.sources(dataset):
            path = data.placed(source, origin, self.root / "raw" / name)
            if path is None or source.sha256 or source.name in users:
                continue
            self.watched.setdefault(str(path), stamp([path]))
            expected = lock.expected(source.name)
            there = Contents(self.root).of([path]) if path.is_file() else expected
            if expected and there != expected:
                problem = f"{path} has sha256 {there}, but {self.lock} says {expected}"
                allowed = f"that file; or, if the new one is meant, no {source.name} in the lock"
                raise ConfigError(choice.at, problem, f"{allowed}: runs on it get other names")
            if there:
                by_source[source.name] = there
        return by_source

    def _watch(self, dataset: data.Dataset, users: Mapping[str, list[Path]]) -> None:
        """Record the `stamp` of files; a folder, to which files may be added, counts as one."""
        path = getattr(dataset, "path", None)
        folder = path_of(path) if isinstance(path, str) and is_folder(path_of(path)) else None
        files = [file for paths in users.values() for file in paths]
        outside = [file for file in files if not folder or not file.is_relative_to(folder)]
        for place in (folder, *outside):
            if place is not None:
                self.watched.setdefault(str(place), stamp([place]))
