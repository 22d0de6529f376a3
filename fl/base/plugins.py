"""Plugins: the user's own code outside this repository, with the same rights as code inside it.

``plugins: [../mylab]`` in ``config.yaml`` names a Python package: a folder with ``methods/``,
``terms/``, ``alterations/``, ``filters/``, ``aggregations/``, ``models/``, ``datasets/``,
``schemes/`` and ``analyses/`` as in ``fl``, and other files that these import. The registry finds
them. They are checked, are part of the identity of runs, and can be tested by the contract tests.

Exceptions become one line of text here; for code of a plugin, with file and line.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
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


VMAP_MESSAGE = "vmap: It looks like you're"
"""First words of PyTorch's message if a tensor in a stack is converted to a Python number."""
STACK_ADVICE = "this is impossible in a stack of clients; try `execution: {backend: loop}`"


def describe(error: BaseException) -> str:
    """Return an exception in one line: ``lab/methods/mine.py, line 30: KeyError: 'x'``.

    File and line are given for code of plugins only; the innermost one counts.
    """
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if str(error).startswith(VMAP_MESSAGE):
        text = f"{text.rstrip('.')}; {STACK_ADVICE}"
    line = plugin_line(error)
    return f"{line}: {text}" if line else text


def plugin_line(error: BaseException) -> str:
    """Return the line of a plugin that raised an error, ``lab/a.py, line 30``; empty if none."""
    folders = [f"{root}{os.sep}" for root in roots().values() if root != FL]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(tuple(folders)):
            return f"{os.path.relpath(frame.filename)}, line {frame.lineno}"
    return ""
