"""Conversion of the keys of a call to the keys of a study.

A method, model or term can be a class that the notebook defines. The source of a class becomes a
plugin in the folder of results, named by its content: ``mine-1a2b3c4d``. So it is part of the names
of its runs like every plugin, another session finds the same class, and a file in
``config/studies`` can use it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
from torch import nn

from fl.api.training import Training
from fl.base import fields, files, plugins, registry
from fl.base.declaration import declaration_of
from fl.base.errors import ConfigError, ConfigProblems, FedloomError, Location
from fl.base.hashes import digest
from fl.notebook import source
from fl.notebook.arrays import ArrayData, is_frame, is_frame_by_split, with_frame_paths
from fl.plan import config
from fl.plan.config import Draft, Settings, Study

CLASSES_FOLDER = "classes"
"""Folder of these plugins, in the folder of results."""

CALL = Location("fl.run")
"""Location of a call's keys in errors."""

SINGULAR_KEYS = {"dataset": "datasets", "partition": "partitions", "model": "models"}
"""Keys of a call for a single value, and the study's keys for several."""

ARRAYS = "arrays"
"""Folder of files of `fl.arrays` and of tables in memory, in the folder of data."""


def study(
    arguments: Mapping[str, Any], settings: Settings, location: Location = CALL
) -> tuple[Draft, Settings]:
    """Return the study that a call describes, as far as its keys are right.

    In addition to the keys of a study, a call can have one ``dataset``, ``partition`` and
    ``model``, the keys of ``training``, and classes.

    Args:
        arguments: The call's keyword arguments.
        settings: Settings with the folders for the call's data and classes.
        location: Location of the keys.

    Returns:
        The study, and the settings with the classes as plugins.

    Raises:
        ConfigError: For arguments of which no study can be made.
    """
    problems = ConfigProblems()
    folder = Path(settings.data) / ARRAYS
    study_fields, training_fields = fields.fields(Study), fields.fields(Training)
    remaining, classes = dict(arguments), Classes(Path(settings.results))
    study_keys: dict[str, Any] = {}
    wrong_keys: set[str] = set()
    training_keys = dict(fields.mapping(remaining.pop("training", None), CALL / "training"))
    for key, value in remaining.items():
        name = SINGULAR_KEYS.get(key, key)
        is_known = isinstance(value, str | Mapping | ArrayData) or is_frame(value)
        if key == "dataset" and not is_known:
            allowed = "a name, a name with its keys, or data of your own by fl.arrays(x, y)"
            raise ConfigError(CALL / key, f"is a {type(value).__name__}", allowed)
        if name in study_fields:
            _set_once(study_keys, name, [value] if key in SINGULAR_KEYS else value, key)
        elif key in training_fields:
            _set_once(training_keys, key, value, key)
        else:
            names = {*study_fields, *training_fields, *SINGULAR_KEYS}
            problems.errors.append(config.unknown_key(CALL / key, key, names))
            wrong_keys |= {SINGULAR_KEYS.get(n, n) for n in fields.misspelt_keys([key], names)}
    if "methods" in study_keys:
        methods = with_entry_names(config_value(study_keys["methods"], folder))
        entries = config.named_entries(methods, CALL / "methods")
        study_keys["methods"] = classes.methods(entries, CALL / "methods")
    if "models" in study_keys:
        study_keys["models"] = classes.models(study_keys["models"], CALL / "models")
    if "devices" in study_keys:
        devices = study_keys["devices"]
        study_keys["devices"] = classes.added("devices", devices, CALL / "devices")
    study_keys = config_value(study_keys, folder)
    training_keys = config_value(training_keys, folder)
    call_settings = replace(settings, plugins=(*settings.plugins, *classes.plugins))
    draft = config.parse_draft({**study_keys, "training": training_keys}, location)
    is_missing = {str(CALL / key) for key in wrong_keys - study_keys.keys()}
    problems.errors += [e for e in draft.errors if str(e.location) not in is_missing]
    errors, wrong_keys = tuple(problems.errors), wrong_keys | draft.wrong_keys
    return replace(draft, errors=errors, wrong_keys=frozenset(wrong_keys)), call_settings


def _set_once(keys: dict[str, Any], name: str, value: Any, argument: str) -> None:
    """Set a key, or refuse a second argument for the same key."""
    if name in keys:
        singular = next(
            (singular for singular, plural in SINGULAR_KEYS.items() if plural == name), "training"
        )
        earlier = name if argument == singular else singular
        raise ConfigError(
            CALL / argument,
            f"is given in addition to {earlier}",
            advice=f"give either `{argument}` or `{earlier}`, not both",
        )
    keys[name] = value


def with_entry_names(methods: Any) -> Any:
    """Return ``methods`` with an entry ``{name: class}`` in place of each class."""
    if isinstance(methods, list):
        return [with_entry_names(item) for item in methods]
    return {entry_name(methods): methods} if is_own(methods) else methods


def config_value(value: Any, folder: Path) -> Any:
    """Return a value as a file has it: lists for tuples and arrays, Python's numbers for NumPy's.

    Args:
        value: An argument of a call.
        folder: Folder for data of `fl.arrays` and tables in memory.
    """
    if isinstance(value, ArrayData):
        return value.item(folder)
    if isinstance(value, Mapping):
        if any(is_frame(inner) or is_frame_by_split(inner) for inner in value.values()):
            value = with_frame_paths(value, folder, CALL / "dataset")
        return {key: config_value(inner, folder) for key, inner in value.items()}
    if is_frame(value):
        advice = 'write {"table": {"frame": ..., "label": "name of a column"}}'
        raise ConfigError(CALL / "dataset", f"is a {type(value).__name__}", advice=advice)
    if isinstance(value, np.ndarray | np.generic):
        return config_value(value.tolist(), folder)
    if isinstance(value, list | tuple | range):
        return [config_value(inner, folder) for inner in value]
    return value


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
        titles = {name: _title(entry) for name, entry in entries.items()}
        counts = Counter(titles.values())
        named_entries = {}
        for name, entry in entries.items():
            own_entry = self._entry(entry, location / str(name))
            if title := titles[name]:
                own_title = title if counts[title] == 1 else f"{title} ({name})"
                own_entry = {"title": own_title, **own_entry}
            named_entries[name] = own_entry
        return named_entries

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
            if key in keys:
                keys[key] = self.added(kind, keys[key], location / key)
        return keys

    def added(self, kind: str, components: Any, location: Location) -> Any:
        """Return what is added to a method with names instead of classes."""
        if not isinstance(components, Mapping):
            return components
        return dict(self._pair(kind, name, value, location) for name, value in components.items())

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
        if isinstance(item, nn.Module):
            raise _instance_error(item, location)
        if isinstance(item, FunctionType) or _is_module_class(item):
            return {self._write_factory(item, location): keys}
        name, values = self._write_plugin("model", item, location)
        return {name: {**values, **keys}}

    def _write_factory(self, function: FunctionType | type, location: Location) -> str:
        """Write and use the plugin of a function or class that makes models; return its name."""
        is_named = function.__name__ != source.LAMBDA
        class_name = function.__name__.title().replace("_", "") if is_named else "Model"
        if isinstance(function, type):
            class_name = function.__name__
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
            advice = f"give a name, or a dataclass {form}{factory}; see docs/guide/tutorial.md"
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


def _is_module_class(value: Any) -> bool:
    """Whether a value is a class of PyTorch's modules that is not written as a plugin."""
    is_plugin = dataclasses.is_dataclass(value) and hasattr(value, "build")
    return isinstance(value, type) and issubclass(value, nn.Module) and not is_plugin


def _instance_error(module: nn.Module, location: Location) -> ConfigError:
    """Return the error for a network in place of what makes one, with the line to write."""
    cls = type(module)
    name = f"nn.{cls.__name__}" if cls.__module__.startswith("torch.nn") else cls.__name__
    problem = f"is a network of the class {name}, but each run makes its own, by its seed"
    line = f"model=lambda shape, classes: {name}(...)"
    if cls.__name__ == name:
        try:
            source.factory_text(cls, name, "")
        except FedloomError as error:
            advice = str(error).partition("Try: ")[2]
            line = advice if advice.startswith("model=") else line
        else:
            line = f"model={name}"
    advice = f"{line}; for trained weights see docs/guide/trained-weights.md"
    return ConfigError(location, problem, advice=advice)


def _title(entry: Any) -> str:
    """Return the title that an entry has by the class of its method; empty if it has none."""
    method = entry.get("method") if isinstance(entry, Mapping) else entry
    if not is_own(method) or (isinstance(entry, Mapping) and "title" in entry):
        return ""
    cls = method if isinstance(method, type) else type(method)
    title = declaration_of(cls).title
    return "" if title == cls.__name__ else title


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
