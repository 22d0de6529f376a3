"""Plugins: the user's own code outside this repository, with the same rights as code inside it.

``plugins: [../mylab]`` in ``config.yaml`` names a Python package: a folder with ``methods/``,
``terms/``, ``alterations/``, ``filters/``, ``aggregations/``, ``models/``, ``datasets/``,
``schemes/`` and ``analyses/`` as in ``fl``, and other files that these import. The registry finds
them. They are checked, are part of the identity of runs, and can be tested by the contract tests.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from fl.base.errors import ConfigError, Location
from fl.base.files import is_folder

FL = Path(__file__).resolve().parents[1]
SNAPSHOT = FL.parent / "snapshot.json"
"""This file exists if the code is a copy for jobs; copies of the plugins then lie beside it."""

_roots: dict[str, Path] = {FL.name: FL}


def use(folders: Iterable[str], location: Location) -> None:
    """Make the packages in these folders importable in this process.

    Raises:
        ConfigError: If a folder does not exist, its name is not a Python name, or another package
            has its name.
    """
    for i, text in enumerate(folders):
        item_location = location / i
        try:
            folder = Path(text).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            folder = Path(text)
        if SNAPSHOT.is_file():
            folder = SNAPSHOT.with_name(folder.name)
        if "\0" in text or not is_folder(folder):
            problem = f"{text!r} is not a folder"
            raise ConfigError(item_location, problem, "the folder of a Python package")
        if not folder.name.isidentifier():
            problem = f"{folder.name!r} is not a name that Python can import"
            raise ConfigError(item_location, problem)
        if _roots.setdefault(folder.name, folder) != folder:
            problem = f"{folder} has the same name as {_roots[folder.name]}"
            raise ConfigError(item_location, problem, "packages with different names")
        if str(folder.parent) not in sys.path:
            sys.path.append(str(folder.parent))
        spec = importlib.util.find_spec(folder.name)
        if spec is None or str(folder) not in (spec.submodule_search_locations or ()):
            problem = f"{folder.name!r} is the name of a package that Python already has"
            raise ConfigError(item_location, problem, advice="rename the folder")


def roots() -> dict[str, Path]:
    """Return the packages whose code decides numbers, by name: ``fl`` first, then plugins."""
    return dict(_roots)
