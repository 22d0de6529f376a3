"""Methods, models and terms that a notebook defines, as plugins of a study.

The source of a class becomes a plugin in the folder of results, named by its content:
``mine-1a2b3c4d``. So it is part of the names of its runs like every plugin, another session finds
the same class, and a file in ``config/studies`` can use it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from fl.base import files, plugins, registry
from fl.base.digest import digest
from fl.base.errors import ConfigError, FedloomError, Location
from fl.notebook import source

CLASSES_FOLDER = "classes"
"""Folder of these plugins, in the folder of results."""


class Classes:
    """Classes of a call, and their plugins.

    Attributes:
        plugins: Folders of the plugins of all classes that were named.
    """

    def __init__(self, results: Path) -> None:
        """Begin without classes.

        Args:
            results: Folder of results.
        """
        self._folder = results / CLASSES_FOLDER
        self.plugins: list[str] = []

    def models(self, items: Any, location: Location) -> Any:
        """Return a study's models with names instead of classes."""
        if not isinstance(items, list):
            return items
        return [self._model(item, location / i) for i, item in enumerate(items)]

    def methods(self, entries: Any, location: Location) -> Any:
        """Return a study's entries with names instead of classes."""
        if not isinstance(entries, Mapping):
            return entries
        return {name: self._entry(entry, location / str(name)) for name, entry in entries.items()}

    def _entry(self, entry: Any, location: Location) -> Any:
        if is_own(entry):
            name, values = self._write_plugin("method", entry, location)
            return {"method": name, **values}
        if not isinstance(entry, Mapping):
            return entry
        keys = dict(entry)
        if is_own(keys.get("method")):
            name, values = self._write_plugin("method", keys["method"], location / "method")
            keys = {**values, **keys, "method": name}
        keys = registry.with_current_keys(keys, location)
        for spec_key, kind in registry.ADDED_KINDS.items():
            key = registry.entry_key(spec_key)
            if isinstance(keys.get(key), Mapping):
                pairs = [self._pair(kind, n, v, location / key) for n, v in keys[key].items()]
                keys[key] = dict(pairs)
        return keys

    def _pair(self, kind: str, name: str, value: Any, location: Location) -> tuple[str, Any]:
        return self._write_plugin(kind, value, location / name) if is_own(value) else (name, value)

    def _model(self, item: Any, location: Location) -> Any:
        """Return a model as a study names it; ``{"model": Net, "width": [5, 10]}`` is a grid."""
        keys: dict[str, Any] = {}
        if isinstance(item, Mapping) and is_own(item.get("model")):
            keys, location = dict(item), location / "model"
            item = keys.pop("model")
        if not is_own(item):
            return item
        if isinstance(item, FunctionType):
            return {self._write_factory(item, location): keys}
        name, values = self._write_plugin("model", item, location)
        return {name: {**values, **keys}}

    def _write_factory(self, function: FunctionType, location: Location) -> str:
        """Write and use the plugin of a function that makes models; return its name."""
        is_named = function.__name__ != source.LAMBDA
        class_name = function.__name__.title().replace("_", "") if is_named else "Model"
        with _located(location):
            text = source.factory_text(function, class_name, "Model of a function of a notebook.")
        return self._use_text("model", class_name, text, location)

    def _write_plugin(
        self, kind: str, component: Any, location: Location
    ) -> tuple[str, dict[str, Any]]:
        """Write and use the plugin of a class; return its name, and the keys of an instance."""
        cls = component if isinstance(component, type) else type(component)
        if not dataclasses.is_dataclass(cls) or not hasattr(cls, "build"):
            form = 'with @declare("global")' if kind == "method" else "with `build`"
            factory = ", or a function of shape and classes" if kind == "model" else ""
            problem = f"is of the class {cls.__name__}, which is no {kind}"
            advice = f"give a name, or a dataclass {form}{factory}; see docs/tutorial.md"
            raise ConfigError(location, problem, advice=advice)
        with _located(location):
            text = source.module_text(cls, f"{cls.__name__}, of a notebook.")
        name = self._use_text(kind, cls.__name__, text, location)
        values = (
            {} if component is cls else {f.name: getattr(component, f.name) for f in _fields(cls)}
        )
        return name, values

    def _use_text(self, kind: str, class_name: str, text: str, location: Location) -> str:
        """Write and use a plugin with the text of a module; return its name."""
        stem = f"{snake(class_name)}_{digest(text)[:8]}"
        self._use(stem, Path(registry.FOLDER_BY_KIND[kind]).name, text, location)
        return stem.replace("_", "-")

    def _use(self, stem: str, folder: str, text: str, location: Location) -> None:
        package = plugins.roots().get(stem, self._folder / stem)
        path = package / folder / f"{stem}.py"
        if not path.exists():
            with files.disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                files.write_bytes(path, f"{text}\n".encode())
        plugins.use([str(package)], location)
        self.plugins.append(str(package))


@contextlib.contextmanager
def _located(location: Location) -> Iterator[None]:
    """Give errors of a source their location."""
    try:
        yield
    except FedloomError as error:
        raise ConfigError(location, str(error)) from None


def is_own(value: Any) -> bool:
    """Whether a value is a class or an instance of the user's own, and no value of a config."""
    config_types = (str, bytes, int, float, Mapping, list, tuple, type(None))
    return isinstance(value, type) or not isinstance(value, config_types)


def entry_name(component: Any) -> str:
    """Return the default name of an entry of a class: ``my-method``."""
    cls = component if isinstance(component, type) else type(component)
    return snake(cls.__name__).replace("_", "-")


def snake(name: str) -> str:
    """Return a name in snake case: ``my_method`` for ``MyMethod``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _fields(cls: Any) -> Iterable[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(cls) if field.init]
