"""The keys of a call as a study says them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fl.api.training import Training
from fl.base import fields
from fl.base.errors import ConfigError, Location, unknown_name
from fl.notebook.arrays import Given
from fl.notebook.classes import Classes, is_own, label
from fl.plan import config
from fl.plan.config import Settings, Study

CALL = Location("fl.run")
"""Where errors say that a key stands."""

ONE = {"dataset": "datasets", "partition": "partitions", "model": "models"}
"""What a call may say of a single thing, and the study's key for several."""


ARRAYS = "arrays"
"""The folder of files of `fl.arrays`, in that of data."""


def study(given: Mapping[str, Any], settings: Settings) -> tuple[Study, Settings]:
    """The study that a call describes.

    Beside the keys of a study, a call may say one ``dataset``, ``partition`` and ``model``, how
    many ``seeds``, the keys of ``training``, and ``methods`` as a list.

    Args:
        settings: Where what the call brings is written: data, and the source of classes.

    Returns:
        The study; and the settings, with the classes as plugins.

    Raises:
        ConfigError: For what is wrong with its keys.
    """
    folder = Path(settings.data) / ARRAYS
    known, training = fields.fields(Study), fields.fields(Training)
    said, classes = dict(given), Classes(Path(settings.results))
    of_study: dict[str, Any] = {}
    of_training = dict(fields.mapping(said.pop("training", None), CALL / "training"))
    for key, value in said.items():
        name = ONE.get(key, key)
        if key == "dataset" and not isinstance(value, str | Mapping | Given):
            allowed = "a name, a name with its keys, or data of your own by fl.arrays(x, y)"
            raise ConfigError(CALL / key, f"is a {type(value).__name__}", allowed)
        if name in known:
            _once(of_study, name, [value] if key in ONE else value, key)
        elif key in training:
            _once(of_training, key, value, key)
        else:
            raise unknown_name(CALL / key, "key", key, {*known, *training, *ONE})
    entries = _methods(plain(of_study.get("methods"), folder))
    of_study["methods"] = classes.methods(entries, CALL / "methods")
    of_study["models"] = classes.models(of_study.get("models"), CALL / "models")
    of_study, of_training = plain(of_study, folder), plain(of_training, folder)
    seeds = of_study.setdefault("seeds", 1)
    if type(seeds) is int and seeds > 0:
        of_study["seeds"] = list(range(seeds))
    elif not isinstance(seeds, list):
        allowed = "how many, 1 or more, or a list of seeds"
        raise ConfigError(CALL / "seeds", f"is {seeds!r}", allowed)
    brought = replace(settings, plugins=(*settings.plugins, *classes.plugins))
    return config.parse_study({**of_study, "training": of_training}, CALL), brought


def _once(keys: dict[str, Any], name: str, value: Any, said: str) -> None:
    if name in keys:
        short = next((short for short, long in ONE.items() if long == name), "training")
        other = name if said == short else short
        raise ConfigError(CALL / said, f"stands beside {other}, which says it too", "one of them")
    keys[name] = value


def _methods(given: Any) -> Any:
    """Entries by name, of a list of names and of mappings."""
    if isinstance(given, str):
        return {given: None}
    if is_own(given):
        return {label(given): given}
    if not isinstance(given, Sequence):
        return given
    entries: dict[str, Any] = {}
    for i, item in enumerate(given):
        at = CALL / "methods" / i
        named = {label(item): item} if is_own(item) else item
        named = {item: None} if isinstance(item, str) else fields.mapping(named, at)
        for name in named:
            if name in entries:
                raise ConfigError(at, f"{name!r} stands twice", "each entry once, by its own name")
        entries |= named
    return entries


def plain(value: Any, folder: Path) -> Any:
    """A value as a file would say it: lists for tuples and arrays, Python's numbers for NumPy's.

    Args:
        folder: For data that the call brings.
    """
    if isinstance(value, Given):
        return value.item(folder)
    if isinstance(value, Mapping):
        return {key: plain(inner, folder) for key, inner in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist(), folder)
    if isinstance(value, list | tuple | range):
        return [plain(inner, folder) for inner in value]
    return value
