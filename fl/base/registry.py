"""The registry of methods, loss terms, alterations of features, upload filters, aggregations,
models, data sets, partition schemes and analyses, one file each.

A file's name is its name (``two_layer.py`` is ``two-layer``). The first line of its docstring is
its summary, the second paragraph its citation, the rest are notes. It defines one dataclass with a
``build`` or ``read`` method, or, for a partition scheme, one function named as the file. The
annotated fields are the config keys, explained in their docstring (`fl.base.meanings`).
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from fl.base import faults, fields, plugins, reading
from fl.base.errors import ConfigError, Location, unknown

ROOT = plugins.FL

FOLDERS = {
    "method": "methods",
    "term": "terms",
    "alteration": "terms/alterations",
    "upload filter": "uploads/filters",
    "aggregation": "uploads/aggregations",
    "model": "models",
    "task": "api/tasks",
    "data set": "data/datasets",
    "partition scheme": "data/schemes",
    "analysis": "analyses",
}
"""Where each kind lies in ``fl``; in a plugin without ``data/``."""

ADDED = {
    "terms": "term",
    "alterations": "alteration",
    "wire": "upload filter",
    "aggregation": "aggregation",
}
"""What a study adds to a method: by key of an entry and of a spec, its kind. A spec has none but
``terms`` that adds nothing, so that runs without are named as they were.
"""

ENTRY_KEYS = {"wire": "upload_filters"}
"""The key of a study's entry, by the key of a spec that holds the same, where the two differ.

Specs keep the key of earlier versions, so that runs keep their names. In an entry the key of the
spec is still read, with a warning.
"""


def entry_key(spec_key: str) -> str:
    """Return the key of a study's entry for a key of `ADDED`."""
    return ENTRY_KEYS.get(spec_key, spec_key)


def with_current_keys(entry: Mapping[str, Any], location: Location) -> dict[str, Any]:
    """Return an entry with former keys (`ENTRY_KEYS`) replaced; a warning names the current ones.

    Raises:
        ConfigError: If a former key and its current one are both set.
    """
    return fields.replace_former_names(ENTRY_KEYS, entry, location)


@dataclass(frozen=True)
class Said:
    """The documentation in the docstring of a file; what is absent is empty.

    Summary and citation are one line each, notes are as they are written.
    """

    kind: str
    name: str
    file: Path
    summary: str
    citation: str
    notes: str


@dataclass(frozen=True)
class Component(Said):
    """One thing that a config can name.

    Attributes:
        target: The class or function that its file defines.
    """

    target: Any

    def parse(self, values: Mapping[str, Any] | None, location: Location) -> dict[str, Any]:
        """Its config keys, checked and with defaults; see `fl.base.fields.parse`."""
        return fields.parse(self.target, values, location)

    def make(self, settled: Mapping[str, Any]) -> Any:
        """The instance for values that `parse` returned, or that were read from a spec.

        Raises:
            ConfigError: For a value that is missing or not allowed.
        """
        location, typed = Location(self.name), {}
        for name, field in fields.fields(self.target).items():
            if name not in settled:
                raise ConfigError(location / name, "is missing", fields.describe(field.hint))
            typed[name] = fields.value(field.hint, settled[name], location / name)
        return self.target(**typed)


def names(kind: str) -> list[str]:
    """All names of a kind, those of plugins included, without importing anything."""
    return sorted(_modules(kind, Location("plugins")))


def find(kind: str, name: str, location: Location) -> Component:
    """The entry of that name, or a `ConfigError` at ``location`` with the nearest one suggested."""
    module_name = _named(kind, name, location)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise _broken(location, module_name, error) from error
    return _defined(kind, name, module, location)


@cache
def _defined(kind: str, name: str, module: ModuleType, location: Location) -> Component:
    """The entry that a module defines."""
    said = _said(kind, name, Path(inspect.getfile(module)), module.__doc__)
    return Component(**vars(said), target=_target(module, location))


def declared(kind: str, name: str, location: Location) -> Component:
    """As `find`, for who only asks for keys: where they can be told by reading the file, it is not
    imported, and the target is a dataclass of these keys alone.
    """
    place = file(kind, name, location)
    # A file of the user's own is imported, so that its author is told what is wrong with it.
    target = reading.dataclass_of(place) if place.is_relative_to(ROOT) else None
    if target is None:
        return find(kind, name, location)
    text = ast.get_docstring(ast.parse(place.read_bytes()))
    return Component(**vars(_said(kind, name, place, text)), target=target)


def file(kind: str, name: str, location: Location) -> Path:
    """The file of the entry of that name, or a `ConfigError` as of `find`; not imported."""
    return _file(_named(kind, name, location))


def _named(kind: str, name: str, location: Location) -> str:
    """The module of the entry of that name."""
    modules = _modules(kind, location)
    if name not in modules:
        raise unknown(location, kind, name, modules)
    return modules[name]


def entry_of(kind: str, spec: Mapping[str, Any]) -> tuple[Component, Any]:
    """The registry's entry for a spec, and the entry's target made with the spec's values."""
    entry = find(kind, spec["name"], Location("the spec"))
    values = {key: value for key, value in spec.items() if key != "name"}
    return entry, entry.make(values)


def added(spec: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """What a spec adds to its method: the key, the kind, and the spec of each."""
    for key, kind in ADDED.items():
        yield from ((key, kind, its) for its in spec.get(key, ()))


def described(kind: str) -> list[Said]:
    """The documentation of all entries, read without importing them."""
    location, descriptions = Location("plugins"), []
    for name, module in sorted(_modules(kind, location).items()):
        file = _file(module)
        try:
            text = ast.get_docstring(ast.parse(file.read_bytes(), filename=str(file)))
        except (SyntaxError, ValueError) as error:
            raise _broken(location, module, error) from error
        descriptions.append(_said(kind, name, file, text))
    return descriptions


def _said(kind: str, name: str, file: Path, docstring: str | None) -> Said:
    summary, _, rest = inspect.cleandoc(docstring or "").partition("\n\n")
    citation, _, notes = rest.partition("\n\n")
    return Said(kind, name, file, " ".join(summary.split()), " ".join(citation.split()), notes)


def _broken(location: Location, module: str, error: BaseException) -> ConfigError:
    problem = f"{module} cannot be imported ({faults.told(error)})"
    return ConfigError(location, problem)


def _file(module: str) -> Path:
    package, *inner = module.split(".")
    return plugins.roots()[package].joinpath(*inner).with_suffix(".py")


def _modules(kind: str, location: Location) -> Mapping[str, str]:
    """Module by name, over ``fl`` and all plugins."""
    modules: dict[str, str] = {}
    for package, root in plugins.roots().items():
        folder, prefix = _shelf(kind, package, root)
        for name, module in _named_stems(prefix, _stems(folder)).items():
            if modules.setdefault(name, module) != module:
                problem = f"the {kind} {name!r} stands in {modules[name]} and in {module}"
                raise ConfigError(location, problem, "each name once")
    return modules


@cache
def _shelf(kind: str, package: str, root: Path) -> tuple[Path, str]:
    """The folder of a kind, and what its modules' names begin with."""
    inner = FOLDERS[kind] if root == ROOT else Path(FOLDERS[kind]).name
    return root / inner, ".".join([package, *Path(inner).parts])


@cache
def _named_stems(prefix: str, stems: tuple[str, ...]) -> dict[str, str]:
    """Module by name, of the files of a folder."""
    return {stem.replace("_", "-"): f"{prefix}.{stem}" for stem in stems}


def _stems(folder: Path) -> tuple[str, ...]:
    """The names of the modules in a folder, looked up again when it has changed."""
    try:
        return _listed(folder, folder.stat().st_mtime_ns)
    except OSError:
        return ()


@cache
def _listed(folder: Path, changed: int) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in folder.glob("[a-z]*.py")))


def entries(kind: str) -> list[Component]:
    """All entries of a kind; imports them."""
    return [find(kind, name, Location("")) for name in names(kind)]


def _target(module: Any, location: Location) -> Any:
    function = getattr(module, module.__name__.rpartition(".")[2], None)
    if inspect.isfunction(function):
        return function
    things = [
        thing
        for thing in vars(module).values()
        if dataclasses.is_dataclass(thing)
        and thing.__module__ == module.__name__
        and (hasattr(thing, "build") or hasattr(thing, "read"))
    ]
    if len(things) != 1:
        problem = f"{module.__name__} has {len(things)} dataclasses with `build` or `read`"
        raise ConfigError(location, problem, "exactly one")
    return things[0]
