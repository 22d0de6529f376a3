"""The registry of components: methods, models, data sets, loss terms, and so on, one file each.

The file's name is the component's name in configs (``two_layer.py`` is ``two-layer``). The first
line of its docstring is the summary, the second paragraph the citation, the rest are notes. The
file defines one dataclass with a ``build`` or ``read`` method, or, for a partition scheme, one
function with the name of the file. Their annotated fields are the config keys, which the docstring
explains (`fl.cli.catalogue`).

A component's config keys can be read from its source, because importing it may load torch, for
seconds (`find_declaration`).
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import os
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from fl.base import fields, plugins
from fl.base.errors import ConfigError, ConfigProblems, Location, unknown_name
from fl.base.fields import Count, Positive
from fl.base.specs import ComponentSpec, MethodSpec, component_specs

ROOT = plugins.FL

FOLDER_BY_KIND = {
    "method": "methods",
    "term": "terms",
    "alteration": "terms/alterations",
    "upload filter": "uploads/filters",
    "aggregation": "uploads/aggregations",
    "devices": "participation/devices",
    "selection": "participation/selections",
    "asynchronous server": "participation/servers",
    "model": "models",
    "task": "api/tasks",
    "data set": "data/datasets",
    "partition scheme": "data/schemes",
    "analysis": "analyses",
}
"""Folder in ``fl`` of each kind of component; in a plugin without its parent folder."""

COMMAND_BY_KIND = {
    "method": "methods",
    "term": "terms",
    "alteration": "alterations",
    "upload filter": "filters",
    "aggregation": "aggregations",
    "devices": "devices",
    "selection": "selections",
    "asynchronous server": "servers",
    "data set": "datasets",
    "model": "models",
    "partition scheme": "partitions",
    "analysis": "analyses",
}
"""Command of ``fedloom`` that lists the components of a kind; there is none for tasks."""

ADDED_KINDS = {
    "terms": "term",
    "alterations": "alteration",
    "wire": "upload filter",
    "aggregation": "aggregation",
    "devices": "devices",
    "selection": "selection",
    "asynchronous": "asynchronous server",
}
"""Kinds of components that a study adds to a method, by key of a spec.

Except for ``terms``, a spec has a key only if it adds something, so that runs without additions
keep their names.
"""

ENTRY_KEYS = {"wire": "upload_filters"}
"""Keys of a study's entry that differ from the key of the spec with the same content.

Specs keep the key of earlier versions, so that runs keep their names. In an entry the key of the
spec is still read, with a warning.
"""


def entry_key(spec_key: str) -> str:
    """Return the key of a study's entry for a key of `ADDED_KINDS`."""
    return ENTRY_KEYS.get(spec_key, spec_key)


def with_current_keys(entry: Mapping[str, Any], location: Location) -> dict[str, Any]:
    """Return an entry with former keys (`ENTRY_KEYS`) replaced; a warning names the current ones.

    Raises:
        ConfigError: If a former key and its current one are both set.
    """
    return fields.replace_former_names(ENTRY_KEYS, entry, location)


@dataclass(frozen=True)
class Documentation:
    """Documentation of a component, from the docstring of its file.

    Attributes:
        kind: Kind of the component, a key of `FOLDER_BY_KIND`.
        name: Name in configs.
        file: The component's file.
        summary: First line of the docstring.
        citation: Second paragraph in one line; may be empty.
        notes: The rest of the docstring, unchanged; may be empty.
    """

    kind: str
    name: str
    file: Path
    summary: str
    citation: str
    notes: str


@dataclass(frozen=True)
class Component(Documentation):
    """A component that a config can name, such as a method.

    Attributes:
        target: The class or function that its file defines.
    """

    target: Any

    def parse(
        self,
        values: Mapping[str, Any] | None,
        location: Location,
        other_keys: Collection[str] = (),
    ) -> dict[str, Any]:
        """Return the config keys, checked and with defaults; see `fl.base.fields.parse`.

        Keys of every model are among them if they are set.
        """
        if self.kind != "model":
            return fields.parse(self.target, values, location, other_keys)
        values, common = fields.mapping(values, location), self._common
        own_values = {key: value for key, value in values.items() if key not in common}
        problems, resolved = ConfigProblems(), dict[str, Any]()
        with problems.collected():
            resolved |= fields.parse(self.target, own_values, location, [*common, *other_keys])
        with problems.collected():
            resolved |= ModelKeys.of(values, location).spec
        problems.raise_all()
        return resolved

    @property
    def declared(self) -> dict[str, fields.Field]:
        """All config keys, for a model those of every model too."""
        return {**fields.fields(self.target), **self._common}

    @property
    def _common(self) -> dict[str, fields.Field]:
        """The config keys of every model; none for another component."""
        common = fields.fields(ModelKeys) if self.kind == "model" else {}
        for key in common.keys() & fields.fields(self.target).keys():
            problem = f"the model {self.name!r} has a key of every model"
            raise ConfigError(Location(self.name) / key, problem, advice="rename it in its file")
        return common

    def instantiate(self, values: Mapping[str, Any]) -> Any:
        """Return an instance with values that `parse` returned or that come from a spec.

        Raises:
            ConfigError: If a value is missing or not allowed.
        """
        location, typed = Location(self.name), {}
        for name, field in fields.fields(self.target).items():
            if name not in values:
                raise ConfigError(location / name, "is missing", fields.describe(field.hint))
            typed[name] = fields.value(field.hint, values[name], location / name)
        return self.target(**typed)


def names(kind: str) -> list[str]:
    """Return all names of a kind, including those of plugins, without importing anything."""
    return sorted(_modules(kind, Location("plugins")))


def check_names(location: Location) -> None:
    """Raise a `ConfigError` if two files define a component of one kind and name."""
    for kind in FOLDER_BY_KIND:
        _modules(kind, location)


def find(kind: str, name: str, location: Location) -> Component:
    """Import and return the component with that name.

    Raises:
        ConfigError: If it does not exist; the message suggests the most similar name.
    """
    module_name = _module_of(kind, name, location)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise _broken(location, module_name, error) from error
    return _defined(kind, name, module, location)


@cache
def _defined(kind: str, name: str, module: ModuleType, location: Location) -> Component:
    """Return the component that a module defines."""
    documentation = _documentation(kind, name, Path(inspect.getfile(module)), module.__doc__)
    return Component(**vars(documentation), target=_target(module, location))


def find_declaration(kind: str, name: str, location: Location) -> Component:
    """Return the component with that name for reading its config keys.

    If the file can be understood without importing it, the target is a dataclass with the keys
    alone. Otherwise the component is imported (`find`).
    """
    path = file(kind, name, location)
    # A plugin's file is imported, so that its author sees its errors.
    target = dataclass_of(path) if path.is_relative_to(ROOT) else None
    if target is None:
        return find(kind, name, location)
    text = ast.get_docstring(ast.parse(path.read_bytes()))
    return Component(**vars(_documentation(kind, name, path, text)), target=target)


def file(kind: str, name: str, location: Location) -> Path:
    """Return the file of the component with that name, or raise the `ConfigError` of `find`."""
    return _file(_module_of(kind, name, location))


def _module_of(kind: str, name: str, location: Location) -> str:
    """Return the module of the component with that name."""
    modules = _modules(kind, location)
    if name not in modules:
        command = f"fedloom {COMMAND_BY_KIND[kind]}" if kind in COMMAND_BY_KIND else ""
        raise unknown_name(location, kind, name, modules, command)
    return modules[name]


def component_of(kind: str, spec: ComponentSpec) -> tuple[Component, Any]:
    """Return the component that a spec names, and its instance with the spec's values."""
    component = find(kind, spec["name"], Location("the spec"))
    values = {key: value for key, value in spec.items() if key != "name"}
    return component, component.instantiate(values)


def added_components(spec: MethodSpec) -> Iterator[tuple[str, str, ComponentSpec]]:
    """Yield key, kind and spec of each component that a spec adds to its method."""
    for key, kind in ADDED_KINDS.items():
        yield from ((key, kind, component) for component in component_specs(spec, key))


def list_documentation(kind: str, names: Collection[str] | None = None) -> list[Documentation]:
    """Return the documentation of components of a kind, without importing them.

    Args:
        kind: Kind of the components.
        names: Names of those whose files are read; None: all of the kind.
    """
    location, descriptions = Location("plugins"), []
    for name, module in sorted(_modules(kind, location).items()):
        if names is not None and name not in names:
            continue
        file = _file(module)
        try:
            text = ast.get_docstring(ast.parse(file.read_bytes(), filename=str(file)))
        except (SyntaxError, ValueError) as error:
            raise _broken(location, module, error) from error
        descriptions.append(_documentation(kind, name, file, text))
    return descriptions


def _documentation(kind: str, name: str, file: Path, docstring: str | None) -> Documentation:
    summary, _, body = inspect.cleandoc(docstring or "").partition("\n\n")
    citation, _, notes = body.partition("\n\n")
    return Documentation(
        kind, name, file, " ".join(summary.split()), " ".join(citation.split()), notes
    )


def _broken(location: Location, module: str, error: BaseException) -> ConfigError:
    problem = f"{module} cannot be imported ({plugins.describe(error)})"
    return ConfigError(location, problem)


def _file(module: str) -> Path:
    package, *inner = module.split(".")
    return plugins.roots()[package].joinpath(*inner).with_suffix(".py")


def _modules(kind: str, location: Location) -> Mapping[str, str]:
    """Return the module of each component of a kind, in ``fl`` and all plugins."""
    modules: Mapping[str, str] = {}
    for package, root in plugins.roots().items():
        shelf = _shelf(kind, package, root)
        for name in sorted(modules.keys() & shelf.keys()):
            problem = f"the {kind} {name!r} is defined in {modules[name]} and in {shelf[name]}"
            raise ConfigError(location, problem, advice="rename one of the files")
        modules = {**modules, **shelf} if modules else shelf
    return modules


def _shelf(kind: str, package: str, root: Path) -> Mapping[str, str]:
    """Return the module of each component of a kind in a package."""
    inner = FOLDER_BY_KIND[kind]
    if root != ROOT:
        inner = inner.rpartition("/")[2]
    folder = f"{root}/{inner}"
    try:
        changed = os.stat(folder).st_mtime_ns  # noqa: PTH116  # Many calls: a Path takes longer.
    except OSError:
        return {}
    return _listed(folder, f"{package}.{inner.replace('/', '.')}", changed)


@cache
def _listed(folder: str, prefix: str, changed: int) -> dict[str, str]:
    """Return the module of each component in a folder, read again if the folder has changed."""
    stems = sorted(path.stem for path in Path(folder).glob("[a-z]*.py"))
    return {stem.replace("_", "-"): f"{prefix}.{stem}" for stem in stems}


def components(kind: str) -> list[Component]:
    """Import and return all components of a kind."""
    return [find(kind, name, Location("")) for name in names(kind)]


def _target(module: Any, location: Location) -> Any:
    function = getattr(module, module.__name__.rpartition(".")[2], None)
    if inspect.isfunction(function):
        return function
    classes = [
        value
        for value in vars(module).values()
        if dataclasses.is_dataclass(value)
        and value.__module__ == module.__name__
        and (hasattr(value, "build") or hasattr(value, "read"))
    ]
    if len(classes) != 1:
        problem = f"{module.__name__} has {len(classes)} dataclasses with `build` or `read`"
        raise ConfigError(location, problem, "exactly one")
    return classes[0]


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters of linear layers.

    Attributes:
        rank: Rank of the product that is added to a layer's weights.
        alpha: The product counts alpha / rank times.
        layers: Patterns of names of linear layers; the head is never adapted.
    """

    rank: Count = 8
    alpha: Positive = 16.0
    layers: tuple[str, ...] = ("*",)


@dataclass(frozen=True)
class Adapter:
    """The kind of adapters, with its keys."""

    lora: Lora


@dataclass(frozen=True)
class ModelKeys:
    """The keys of every model.

    Attributes:
        trainable: Patterns of names of the weights that are trained; the others are frozen.
        adapter: Layers that are trained in place of the model's weights.
    """

    trainable: tuple[str, ...] | None = None
    adapter: Adapter | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any], location: Location) -> ModelKeys:
        """Return the keys of every model among the values of a model.

        Raises:
            ConfigError: For a value that is not allowed.
        """
        common = {key: values[key] for key in fields.fields(cls) if key in values}
        return cls(**fields.parse(cls, common, location))

    @property
    def spec(self) -> dict[str, Any]:
        """The keys that are set, as specs have them."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value is not None}


def dataclass_of(file: Path) -> type | None:
    """Return a dataclass with the config keys of the component in a file.

    It also has the component's docstring, ``training`` and plain class variables. None if the file
    cannot be understood without importing it.
    """
    try:
        tree = ast.parse(file.read_bytes())
        [entry] = [node for node in tree.body if isinstance(node, ast.ClassDef) and _builds(node)]
        names, keys = _names(tree), []
        namespace: dict[str, Any] = {"__doc__": ast.get_docstring(entry)}
        calls = [node for node in entry.decorator_list if isinstance(node, ast.Call)]
        for keyword in [keyword for call in calls for keyword in call.keywords]:
            if keyword.arg == "training":
                namespace["training"] = ast.literal_eval(keyword.value)
        for node in entry.body:
            if not isinstance(node, ast.AnnAssign):
                continue
            if not ast.unparse(node.annotation).startswith("ClassVar"):
                default = dataclasses.MISSING if node.value is None else _value(node.value, names)
                hint = _value(node.annotation, names)
                keys.append((ast.unparse(node.target), hint, dataclasses.field(default=default)))
            elif isinstance(node.value, ast.Constant):
                namespace[ast.unparse(node.target)] = node.value.value
            elif node.value is not None and ast.unparse(node.target) in ("tasks", "modalities"):
                namespace[ast.unparse(node.target)] = _value(node.value, names)
        if entry.bases:
            return None
        return dataclasses.make_dataclass(entry.name, keys, namespace=namespace, kw_only=True)
    except Exception:  # The caller imports the file, which shows the error.
        return None


def _builds(node: ast.ClassDef) -> bool:
    return any(
        isinstance(inner, ast.FunctionDef) and inner.name in ("build", "read")
        for inner in node.body
    )


def _names(tree: ast.Module) -> dict[str, Any]:
    """Return the names that annotations and defaults may use, with their values.

    These are types of keys, and constants of this file and of the files that it imports from.
    """
    # As authors import it from `fl.api`, whose own file has no constants.
    names = {**vars(fields), **vars(typing), "ALL_TASKS": ("any",)}
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    for node in imports:
        package, *inner = (node.module or "").split(".")
        file = plugins.FL.joinpath(*inner).with_suffix(".py")
        if package == plugins.FL.name and file.is_file():
            constants = _constants(ast.parse(file.read_bytes()), names)
            imported = {alias.name for alias in node.names} & constants.keys()
            names |= {name: constants[name] for name in imported}
    return names | _constants(tree, names)


def _constants(tree: ast.Module, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constants of a file that can be evaluated, such as ``Norm = Literal[...]``."""
    constants: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                constants[node.targets[0].id] = _value(node.value, {**names, **constants})
            except Exception:  # Its value needs an import.
                continue
    return constants


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    return eval(compile(ast.Expression(node), "", "eval"), dict(names))
