"""Plugins: code of the user's own, outside this repository, with the same rights as code in it.

``plugins: [../mylab]`` in ``config.yaml`` names a Python package: a folder with ``methods/``,
``terms/``, ``alterations/``, ``filters/``, ``aggregations/``, ``models/``, ``datasets/``,
``schemes/`` and ``analyses/`` as in ``fl``, and other files that these import. The registry finds
them; they are checked, are part of the identity of runs, and can be run through the contract tests.
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
"""There if this code is a copy for jobs; the plugins that it was planned with lie beside it."""

_roots: dict[str, Path] = {FL.name: FL}


def use(folders: Iterable[str], location: Location) -> None:
    """Make the packages in these folders available to this process.

    Raises:
        ConfigError: At ``location``, for a folder that does not exist, is no Python name, or has
            the name of another package.
    """
    for i, text in enumerate(folders):
        at = location / i
        try:
            folder = Path(text).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            folder = Path(text)
        if SNAPSHOT.is_file():
            folder = SNAPSHOT.with_name(folder.name)
        if "\0" in text or not is_folder(folder):
            raise ConfigError(at, f"{text!r} is not a folder", "the folder of a Python package")
        if not folder.name.isidentifier():
            raise ConfigError(at, f"{folder.name!r} is not a name that Python can import")
        if _roots.setdefault(folder.name, folder) != folder:
            problem = f"{folder} has the name of {_roots[folder.name]}"
            raise ConfigError(at, problem, "packages of different names")
        if str(folder.parent) not in sys.path:
            sys.path.append(str(folder.parent))
        spec = importlib.util.find_spec(folder.name)
        if spec is None or str(folder) not in (spec.submodule_search_locations or ()):
            problem = f"{folder.name!r} is the name of a package that Python already has"
            raise ConfigError(at, problem, "a folder of another name")


def roots() -> dict[str, Path]:
    """Packages whose code can decide numbers, by name: ``fl`` first, then the user's own."""
    return dict(_roots)
