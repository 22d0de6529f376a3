"""Copy of the code for the jobs of a cluster, so that an edit or a pull changes no queued job."""

from __future__ import annotations

import shutil
from pathlib import Path

from fl.base import files, identity, plugins, syntax
from fl.runner import environment

MAX_COPIED_BYTES = 1 << 20
"""Largest file that is copied; larger files, such as data in a plugin's folder, are linked."""


def copy_code(results: Path) -> Path:
    """Copy ``fl`` and the plugins to a folder that is named by its content; return the folder.

    Raises:
        FedloomError: If a file cannot be written.
    """
    sources = {
        f"{name}/{path.relative_to(root).as_posix()}": path
        for name, root in plugins.roots().items()
        for path in sorted(root.rglob("[!.]*"))
        if path.is_file() and not _is_skipped(path.relative_to(root))
    }
    if (lock := environment.ROOT / "requirements.lock").is_file():
        sources[lock.name] = lock
    commit = environment.commit()
    hashes = {
        label: syntax.hash_bytes(path.read_bytes()) if _small(path) else str(path)
        for label, path in sources.items()
    }
    folder = (results / "code" / identity.digest([hashes, commit])).absolute()
    if not folder.exists():
        draft = files.temporary_name(folder)
        with files.disk_errors(folder):
            for label, path in sources.items():
                (draft / label).parent.mkdir(parents=True, exist_ok=True)
                if _small(path):
                    shutil.copyfile(path, draft / label)
                else:
                    (draft / label).symlink_to(path)
            files.write_json(draft / plugins.SNAPSHOT.name, {"commit": commit})
            if not files.move(draft, folder):  # Another Snakemake was first.
                shutil.rmtree(draft)
    return folder


def _is_skipped(path: Path) -> bool:
    return any(name == "__pycache__" or name.startswith(".") for name in path.parts)


def _small(path: Path) -> bool:
    return path.stat().st_size <= MAX_COPIED_BYTES
