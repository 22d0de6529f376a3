"""Methods, models and terms that a notebook defines, as plugins of a study.

The source of a class becomes a plugin of its own below the folder of results, named by its content:
``mine-1a2b3c4d``. So a run's name holds it as it holds any plugin's, the same class is found again
in another session, and a file in ``config/studies`` can name it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fl.base import files, plugins, registry
from fl.base.digest import digest
from fl.base.errors import ConfigError, FedloomError, Location
from fl.notebook import source

HOME = "classes"
"""The folder of these plugins, in that of results."""


class Classes:
    """The classes of a call.

    Args:
        results: The folder of results.

    Attributes:
        plugins: The folders of those that were named.
    """

    def __init__(self, results: Path) -> None:
        self._home = results / HOME
        self.plugins: list[str] = []

    def models(self, items: Any, location: Location) -> Any:
        """A study's models, with names in place of classes."""
        if not isinstance(items, list):
            return items
        return [self._item("model", item, location / i) for i, item in enumerate(items)]

    def methods(self, entries: Any, location: Location) -> Any:
        """A study's entries, with names in place of classes."""
        if not isinstance(entries, Mapping):
            return entries
        return {
            label: self._entry(given, location / str(label)) for label, given in entries.items()
        }

    def _entry(self, given: Any, location: Location) -> Any:
        if is_own(given):
            name, values = self._named("method", given, location)
            return {"method": name, **values}
        if not isinstance(given, Mapping):
            return given
        said = dict(given)
        if is_own(said.get("method")):
            name, values = self._named("method", said["method"], location / "method")
            said = {**values, **said, "method": name}
        said = registry.with_current_keys(said, location)
        for spec_key, kind in registry.ADDED_KINDS.items():
            key = registry.entry_key(spec_key)
            if isinstance(said.get(key), Mapping):
                pairs = [self._added(kind, n, v, location / key) for n, v in said[key].items()]
                said[key] = dict(pairs)
        return said

    def _added(self, kind: str, name: str, given: Any, location: Location) -> tuple[str, Any]:
        return self._named(kind, given, location / name) if is_own(given) else (name, given)

    def _item(self, kind: str, item: Any, location: Location) -> Any:
        if not is_own(item):
            return item
        name, values = self._named(kind, item, location)
        return {name: values}

    def _named(self, kind: str, thing: Any, location: Location) -> tuple[str, dict[str, Any]]:
        """The name of a class, and the values of its keys where it is an instance; its plugin is
        written and in use.
        """
        cls = thing if isinstance(thing, type) else type(thing)
        if not dataclasses.is_dataclass(cls) or not hasattr(cls, "build"):
            made = '@declare("global") makes one' if kind == "method" else "with `build`"
            problem = f"is of the class {cls.__name__}, which is no {kind}"
            raise ConfigError(
                location, problem, f"a name, or a dataclass ({made}; docs/tutorial.md)"
            )
        try:
            text = source.module(cls, f"{cls.__name__}, of a notebook.")
        except FedloomError as error:
            raise ConfigError(location, str(error)) from None
        stem = f"{snake(cls.__name__)}_{digest(text)[:8]}"
        self._use(stem, Path(registry.FOLDER_BY_KIND[kind]).name, text, location)
        values = {} if thing is cls else {f.name: getattr(thing, f.name) for f in _keys(cls)}
        return stem.replace("_", "-"), values

    def _use(self, stem: str, folder: str, text: str, location: Location) -> None:
        package = plugins.roots().get(stem, self._home / stem)
        path = package / folder / f"{stem}.py"
        if not path.exists():
            with files.disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                files.write_bytes(path, f"{text}\n".encode())
        plugins.use([str(package)], location)
        self.plugins.append(str(package))


def is_own(thing: Any) -> bool:
    """Whether something is a class, or of one that is no plain value of a config."""
    plain = (str, bytes, int, float, Mapping, list, tuple, type(None))
    return isinstance(thing, type) or not isinstance(thing, plain)


def label(thing: Any) -> str:
    """What an entry of a class is called that has no other name: ``my-method``."""
    cls = thing if isinstance(thing, type) else type(thing)
    return snake(cls.__name__).replace("_", "-")


def snake(name: str) -> str:
    """``MyMethod`` as ``my_method``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _keys(cls: Any) -> Iterable[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(cls) if field.init]
