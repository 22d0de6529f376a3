"""The code that the jobs of a cluster run: a copy, so that neither an edit nor a pull harms what is
queued.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from fl.base import files, identity, plugins, syntax
from fl.runner import environment

LARGEST = 1 << 20
"""Bytes of a file that is copied; a larger one, beside the code of a plugin, is linked."""


def take(results: Path) -> Path:
    """The folder in which ``fl`` and the plugins in use lie as they are now, named by its content.

    Raises:
        FedloomError: If the disk refuses.
    """
    sources = {
        f"{name}/{path.relative_to(root).as_posix()}": path
        for name, root in plugins.roots().items()
        for path in sorted(root.rglob("[!.]*"))
        if path.is_file() and not _passed_over(path.relative_to(root))
    }
    if (lock := environment.ROOT / "requirements.lock").is_file():
        sources[lock.name] = lock
    commit = environment.commit()
    hashes = {
        label: syntax.hash_bytes(path.read_bytes()) if _small(path) else str(path)
        for label, path in sources.items()
    }
    place = (results / "code" / identity.digest([hashes, commit])).absolute()
    if not place.exists():
        draft = files.temporary_name(place)
        with files.disk_errors(place):
            for label, path in sources.items():
                (draft / label).parent.mkdir(parents=True, exist_ok=True)
                if _small(path):
                    shutil.copyfile(path, draft / label)
                else:
                    (draft / label).symlink_to(path)
            files.write_json(draft / plugins.SNAPSHOT.name, {"commit": commit})
            if not files.move(draft, place):  # Another Snakemake was first.
                shutil.rmtree(draft)
    return place


def _passed_over(path: Path) -> bool:
    return any(name == "__pycache__" or name.startswith(".") for name in path.parts)


def _small(path: Path) -> bool:
    return path.stat().st_size <= LARGEST
