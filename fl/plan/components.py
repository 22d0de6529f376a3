"""Data sets, partitions, models and analyses of a study, and the user's own files behind data sets.

The content of the user's own files is part of a run's identity. There are three kinds: a file that
a data set reads in place, one that it has a ``file:`` address of, and, where no checksum is stated,
one that a person puts into ``data/raw`` or into a folder of ``sources:``. The last kind is also
compared with the lock file, whose entry is used when the file is gone. Downloaded files are not
considered here: before a download their content is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fl.base import fields, registry
from fl.base.errors import ConfigError, ConfigProblems, DataError, Location, printed_form
from fl.base.files import is_folder
from fl.base.folders import path_of
from fl.base.hashes import ContentCache, change_stamp
from fl.base.registry import Component
from fl.base.specs import ComponentSpec
from fl.data import preparation
from fl.data.dataset import (
    Dataset,
    Modality,
    check_dataset_class,
    local_path,
    own_files_by_name,
    raw_folder_name,
    raw_sources,
)
from fl.data.download import Lock
from fl.plan.config import Values
from fl.plan.grids import check_size, grid


@dataclass(frozen=True)
class Choice:
    """A data set, partition, model or analysis of a study, with every default filled in.

    Attributes:
        component: What the registry has of it.
        values: Values of all keys.
        written: Values of the keys that the study sets.
        location: Location in the config.
        id: Id of a data set or partition.
        content: Hashes of the user's own files that a data set reads, by name.
        title_template: Title for reports, with ``{key}`` for the value of a key; it decides no
            number. Empty if the study gives none.
    """

    component: Component
    values: Values
    written: Values
    location: Location
    id: str = ""
    content: dict[str, str] = field(default_factory=dict)
    title_template: str = ""

    @cached_property
    def key(self) -> str:
        """The spec as text, by which two choices are compared."""
        return json.dumps(self.spec, sort_keys=True)

    @cached_property
    def text(self) -> str:
        """The component as the study writes it, ``dirichlet(clients=8, alpha=0.3)``."""
        return text_of(self.component.name, self.written)

    @cached_property
    def title(self) -> str:
        """The user's title for reports; empty if the study gives none."""
        return filled_title(self.title_template, self.values)

    @cached_property
    def seed_keys(self) -> tuple[str, ...]:
        """The keys that are seeds: values of them are draws of one setting."""
        declared = fields.fields(self.component.target).items()
        return tuple(key for key, key_field in declared if fields.is_seed(key_field.hint))

    @cached_property
    def instance(self) -> Any:
        """The object that the component makes with these values."""
        return self.component.instantiate(self.values)

    @property
    def spec(self) -> ComponentSpec:
        """The spec of the component, as runs have it."""
        content = {"content": self.content} if self.content else {}
        return {"name": self.component.name, **self.values, **content}


def choices(
    kind: str, items: list[Any], location: Location, max_points: int, problems: ConfigProblems
) -> list[Choice]:
    """Return all points of items, each of which is ``name`` or ``{name: {key: value}}``.

    Args:
        kind: Kind of component.
        items: The items.
        location: Location of the items.
        max_points: Largest number of points of an item's grid.
        problems: Collects what is wrong with items: they are not understood, equal an earlier one,
            or have too large a grid. Points of other items are returned.
    """
    by_spec: dict[str, Choice] = {}
    by_title: dict[str, Choice] = {}
    for i, item in enumerate(items):
        with problems.collected():
            for choice in _points(kind, item, location / i, max_points):
                if choice.key in by_spec:
                    problem = f"{choice.text} is a duplicate of {by_spec[choice.key].location.key}"
                    raise ConfigError(choice.location, problem, advice=f"each {kind} once")
                first = by_title.setdefault(printed_form(choice.title or choice.text), choice)
                if first is not choice:
                    problem = f"is {choice.title!r} for {first.text} and for {choice.text}"
                    advice = "a title each, as `alpha = {alpha}`"
                    raise ConfigError(choice.location / "title", problem, advice=advice)
                by_spec[choice.key] = choice
    return list(by_spec.values())


def choice(kind: str, item: Any, location: Location) -> Choice:
    """Return the only point of an item ``name`` or ``{name: {key: value}}``.

    Raises:
        ConfigError: For an item that is not understood, or that is a grid.
    """
    return next(_points(kind, item, location, 1))


def _points(kind: str, item: Any, location: Location, max_points: int) -> Iterator[Choice]:
    if isinstance(item, Mapping) and len(item) == 1:
        ((name, keys),) = item.items()
    elif isinstance(item, str):
        name, keys = item, None
    else:
        raise ConfigError(location, f"is {item!r}", "a name, or one name with its keys")
    component = registry.find(kind, str(name), location)
    location /= name
    declared = component.declared
    written = dict(fields.mapping(keys, location))
    title = written.pop("title", "")
    check_size(declared, written, max_points, location)
    for point in grid(declared, written):
        values = component.parse(point, location, other_keys=["title"])
        _check_title(title, values, location / "title")
        yield Choice(component, values, point, location, title_template=title)


def _check_title(title: Any, values: Values, location: Location) -> None:
    """Raise `ConfigError` unless the title is text whose ``{key}`` can be filled in."""
    allowed = f"text; in braces any of {', '.join(values) or 'no key'}"
    if not isinstance(title, str):
        raise ConfigError(location, f"is {title!r}", allowed)
    try:
        filled_title(title, values)
    except (KeyError, IndexError, ValueError, AttributeError, TypeError):
        problem = f"is {title!r}, with something else in braces than a key"
        raise ConfigError(location, problem, allowed, "{{ and }} for braces themselves") from None


def filled_title(title_template: str, values: Values) -> str:
    """Return a title with its ``{key}`` filled in."""
    return " ".join(title_template.format_map(values).split())


def text_of(name: str, values: Values) -> str:
    """Return a component as a study may write it: its name, in brackets its keys."""
    keys = keys_text(values)
    return f"{name}({keys})" if keys else name


def keys_text(values: Values) -> str:
    """Return keys and values as text: ``clients=8, alpha=0.3``."""
    return ", ".join(f"{key}={value}" for key, value in values.items())


@dataclass(frozen=True)
class Inputs:
    """The inputs of a model from a data set, or one of its modalities (`fl.data.dataset.Dataset`).

    Attributes:
        name: Name of the modality; empty where there is only one input.
        shape: Shape of the input; () where a sample has several inputs.
        classes: Number of classes.
        tokens: Number of different tokens; 0 for inputs that are numbers.
        modalities: The inputs of a sample where there are several.
    """

    name: str
    shape: tuple[int, ...]
    classes: int
    tokens: int
    modalities: tuple[Modality, ...] = ()

    @property
    def all_modalities(self) -> tuple[Modality, ...]:
        """The several inputs of a sample, or its only one."""
        return self.modalities or (Modality(self.name, "x", self.shape, self.tokens),)

    def tree(self, create: Callable[[Modality], Any]) -> Any:
        """Return what ``make`` returns for the only input, or by name for each of several."""
        if not self.modalities:
            return create(self.all_modalities[0])
        return {modality.name: create(modality) for modality in self.modalities}


@dataclass(frozen=True)
class OwnFiles:
    """Finds the user's own files behind data sets.

    Attributes:
        root: Folder of raw files and prepared arrays.
        origins: Folder or address of raw files by data set, ``sources`` of the config.
        lock: The lock file.
        watched: The `change_stamp` of each file before it was read, by path.
    """

    root: Path = Path("data")
    origins: Mapping[str, str] = field(default_factory=dict)
    lock: Path = Path("config/sources.lock.json")
    watched: dict[str, str] = field(default_factory=dict)

    def settle(self, choice: Choice) -> Choice:
        """Return a data set with the content of its files, and its id.

        Raises:
            ConfigError: For files of which no data set can be made, and for one that differs from
                the lock file.
        """
        dataset = choice.instance
        origin = self.origins.get(choice.component.name)
        try:
            check_dataset_class(dataset, choice.component.name)
            own_files = own_files_by_name(dataset, origin)
            self._watch(dataset, own_files)
            contents = ContentCache(self.root)
            content = {
                name: contents.hash_of(files)
                for name, files in own_files.items()
                if all(path.exists() for path in files)
            }
            # To answer these, a table is read, which raises what is wrong with it.
            _ = dataset.shape, dataset.classes, dataset.size, dataset.natural_clients
            _ = getattr(dataset, "tokens", 0)
        except DataError as error:
            raise ConfigError(choice.location, str(error)) from None
        content |= self._locked_content(choice, dataset, origin)
        settled = replace(choice, content=content)
        return replace(settled, id=preparation.dataset_id(settled.spec))

    def _locked_content(
        self, choice: Choice, dataset: Dataset, origin: str | None
    ) -> dict[str, str]:
        """Return the content of files that a person provides, of absent ones as in the lock."""
        raw_name, own_files = raw_folder_name(choice.spec), own_files_by_name(dataset, origin)
        lock, content = Lock(self.lock, raw_name), dict[str, str]()
        for source in raw_sources(dataset):
            path = local_path(source, origin, preparation.raw_folder(self.root, choice.spec))
            if path is None or source.sha256 or source.name in own_files:
                continue
            self.watched.setdefault(str(path), change_stamp([path]))
            expected = lock.expected(source.name)
            content_hash = ContentCache(self.root).hash_of([path]) if path.is_file() else expected
            if expected and content_hash != expected:
                problem = f"{path} has sha256 {content_hash}, but {self.lock} says {expected}"
                advice = f"that file; or, if the new one is meant, remove {source.name} from the "
                advice += "lock: runs on it get other names"
                raise ConfigError(choice.location, problem, advice=advice)
            if content_hash:
                content[source.name] = content_hash
        return content

    def _watch(self, dataset: Dataset, own_files: Mapping[str, list[Path]]) -> None:
        """Record the `change_stamp` of files, or of a folder to which files may be added."""
        path = getattr(dataset, "path", None)
        folder = path_of(path) if isinstance(path, str) and is_folder(path_of(path)) else None
        files = [file for paths in own_files.values() for file in paths]
        outside = [file for file in files if not folder or not file.is_relative_to(folder)]
        for watched in (folder, *outside):
            if watched is not None:
                self.watched.setdefault(str(watched), change_stamp([watched]))
