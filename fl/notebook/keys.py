"""Conversion of the keys of a call to the keys of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fl.api.training import Training
from fl.base import fields
from fl.base.errors import ConfigError, ConfigProblems, Location, unknown_name
from fl.notebook.arrays import ArrayData, is_frame, with_frame_paths
from fl.notebook.classes import Classes, entry_name, is_own
from fl.plan import config
from fl.plan.config import Draft, Settings, Study

CALL = Location("fl.run")
"""Location of a call's keys in errors."""

SINGULAR_KEYS = {"dataset": "datasets", "partition": "partitions", "model": "models"}
"""Keys of a call for a single value, and the study's keys for several."""

ARRAYS = "arrays"
"""Folder of files of `fl.arrays` and of tables in memory, in the folder of data."""


def study(arguments: Mapping[str, Any], settings: Settings) -> tuple[Draft, Settings]:
    """Return the study that a call describes, as far as its keys are right.

    In addition to the keys of a study, a call can have one ``dataset``, ``partition`` and
    ``model``, a number of ``seeds``, the keys of ``training``, and ``methods`` as a list.

    Args:
        arguments: The call's keyword arguments.
        settings: Settings with the folders for the call's data and classes.

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
            problems.errors.append(unknown_name(CALL / key, "key", key, names))
            wrong_keys |= {SINGULAR_KEYS.get(n, n) for n in fields.misspelt_keys([key], names)}
    if "methods" in study_keys:
        entries = _method_entries(config_value(study_keys["methods"], folder))
        study_keys["methods"] = classes.methods(entries, CALL / "methods")
    if "models" in study_keys:
        study_keys["models"] = classes.models(study_keys["models"], CALL / "models")
    study_keys = config_value(study_keys, folder)
    training_keys = config_value(training_keys, folder)
    seeds = study_keys.setdefault("seeds", 1)
    if type(seeds) is int and seeds > 0:
        study_keys["seeds"] = list(range(seeds))
    elif not isinstance(seeds, list) and seeds != config.PER_DRAW:
        allowed = f"a number of seeds, 1 or more, a list of seeds, or {config.PER_DRAW}"
        problems.errors.append(ConfigError(CALL / "seeds", f"is {seeds!r}", allowed))
        study_keys["seeds"] = [0]
    call_settings = replace(settings, plugins=(*settings.plugins, *classes.plugins))
    draft = config.parse_draft({**study_keys, "training": training_keys}, CALL)
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


def _method_entries(methods: Any) -> Any:
    """Return entries by name, from a list of names and mappings."""
    if isinstance(methods, str):
        return {methods: None}
    if is_own(methods):
        return {entry_name(methods): methods}
    if not isinstance(methods, Sequence):
        return methods
    entries: dict[str, Any] = {}
    for i, item in enumerate(methods):
        location = CALL / "methods" / i
        entry = {entry_name(item): item} if is_own(item) else item
        entry = {item: None} if isinstance(item, str) else fields.mapping(entry, location)
        for name in entry:
            if name in entries:
                advice = "give every entry a name of its own"
                raise ConfigError(location, f"the entry {name!r} is a duplicate", advice=advice)
        entries |= entry
    return entries


def config_value(value: Any, folder: Path) -> Any:
    """Return a value as a file has it: lists for tuples and arrays, Python's numbers for NumPy's.

    Args:
        value: An argument of a call.
        folder: Folder for data of `fl.arrays` and tables in memory.
    """
    if isinstance(value, ArrayData):
        return value.item(folder)
    if isinstance(value, Mapping):
        if any(map(is_frame, value.values())):
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
