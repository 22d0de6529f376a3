"""What was found out by trying models and methods, kept so that nobody waits for it again.

To try them takes the import of torch, a build of the model and a loss of the method. A success is
kept under a key of all that could change it: the code behind it, the version of torch, the inputs'
shapes, and the settings but for their size (`like`). The file decides nothing and may be deleted.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from fl.base import identity
from fl.base.errors import FedloomError
from fl.base.files import parse_json, write_bytes

TRIAL = Path(__file__).with_name("trial.py")
"""The root of the code that tries models and methods."""

ENOUGH = 4
"""Samples in a batch from which on more make no difference to whether a step can be taken: a
method that halves its batches gives batch normalisation two values to work on.
"""

LENGTHS = ("rounds", "local_epochs", "local_steps", "lr_decay_every", "evaluate_every")
"""Training keys that say how long something is done, not what."""

_known: dict[str, int] = {}
"""What this process has found out or read."""


class TooFew(FedloomError):
    """A batch has too few samples.

    Attributes:
        least: How many would do.
    """

    def __init__(self, problem: str, least: int) -> None:
        self.least = least
        super().__init__(problem)


class Tried:
    """Successes of trials: the parameters of a model, or 0 for a method that can be trained.

    Args:
        path: Where they are kept between processes; None: not at all.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._used = path, set[str]()
        self._kept: dict[str, int] | None = None

    def get(self, key: str) -> int | None:
        """What was found out; None for what has yet to be tried."""
        found = _known.get(key, self._read().get(key))
        if found is not None:
            self._used.add(key)
        return found

    def note(self, key: str, found: int = 0) -> None:
        """Remember a success."""
        _known[key] = found
        self._used.add(key)

    def save(self) -> None:
        """Write what is new, if the folder is there and may be written to."""
        new = {key: _known[key] for key in sorted(self._used) if key in _known}
        kept = self._read()
        if self._path is None or new.keys() <= kept.keys():
            return
        with contextlib.suppress(OSError, FedloomError):
            text = json.dumps({"trial": trial(), "known": kept | new})
            write_bytes(self._path, text.encode())

    def _read(self) -> dict[str, int]:
        if self._kept is None:
            self._kept = _of_file(self._path) if self._path else {}
        return self._kept


def _of_file(path: Path) -> dict[str, int]:
    """What a file says, nothing if other code wrote it or if it is damaged."""
    try:
        found = parse_json(path.read_bytes())
        if found["trial"] != trial():
            return {}
        return {str(key): int(value) for key, value in found["known"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


@cache
def trial() -> str:
    """A hash of the code that tries, and of the versions of what it rests on."""
    versions = [_version(name) for name in ("torch", "torchvision")]
    return identity.digest([identity.code(TRIAL), versions])


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def key(*parts: Any) -> str:
    """The key of a success."""
    return identity.digest([trial(), *parts])


def like(value: Any) -> Any:
    """Settings, of whose fractions only that remains which decides more than a size: their sign,
    and whether they are below, at or above 1.
    """
    if isinstance(value, Mapping):
        return {key: like(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [like(one) for one in value]
    if isinstance(value, float):
        return [value < 0, value > 0, abs(value) < 1, abs(value) > 1]
    return value


def like_training(training: Mapping[str, Any]) -> dict[str, Any]:
    """As `like`, of training settings; of how long something is done it only remains that it is."""
    found = {key: one is None if key in LENGTHS else like(one) for key, one in training.items()}
    return {**found, "batch_size": min(training["batch_size"], ENOUGH)}
