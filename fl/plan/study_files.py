"""Files of studies: ``config/studies/NAME.yaml``, or the same in a folder below.

A study's name is that of its file, whatever folder it lies in. Folders whose names begin with a
dot, such as Jupyter's ``.ipynb_checkpoints``, contain no studies.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fl.base.errors import ConfigError, Location

FOLDER = "studies"


def files(folder: Path) -> dict[str, Path]:
    """Return the file of each study by its name, in the order of names.

    Args:
        folder: The config folder.

    Raises:
        ConfigError: If two files have one name.
    """
    found: dict[str, Path] = {}
    for path in sorted(_paths(folder, "*.yaml"), key=lambda path: (path.stem, path)):
        if path.stem in found:
            problem = f"has the name of {found[path.stem]}"
            raise ConfigError(Location(str(path)), problem, advice="rename or remove one of them")
        found[path.stem] = path
    return found


def file(folder: Path, name: str) -> Path:
    """Return the file of a study; for an unknown name the path that a new study would have.

    A name may have overrides behind a comma (`fl.plan.overrides`).

    Raises:
        ConfigError: If two files have this name.
    """
    name = name.partition(",")[0]
    direct = folder / FOLDER / f"{name}.yaml"
    paths = [direct] if direct.exists() else []
    paths += sorted(path for path in _paths(folder, direct.name) if path != direct)
    if len(paths) > 1:
        problem = f"has the name of {paths[0]}"
        raise ConfigError(Location(str(paths[1])), problem, advice="rename or remove one of them")
    return paths[0] if paths else direct


def _paths(folder: Path, pattern: str) -> Iterator[Path]:
    studies = folder / FOLDER
    for path in studies.rglob(pattern):
        if not any(part.startswith(".") for part in path.relative_to(studies).parts):
            yield path
