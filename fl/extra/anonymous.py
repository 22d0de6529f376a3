"""Anonymous crates for a blind review: what they leave out, and a search for names.

The commit and the settings of a cluster are left out. What determines a run's id cannot be changed.
So a crate is refused, with the file and the word, if a file contains the name of the user or the
host, git's name, address or remote, or a folder of this machine.
"""

from __future__ import annotations

import getpass
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from fl.base import files, plugins
from fl.base.errors import FedloomError
from fl.plan.config import Settings
from fl.store.layout import RECORD

GENERIC_NAMES = ("root", "user", "localhost")
"""Names of users and hosts that identify nobody."""


def remove_commit(run: Path) -> None:
    """Remove the commit from a run's record, and update the record's checksum."""
    content = files.read_sealed(run / RECORD)
    run_files = content.pop("files")
    for key in ("commit", "dirty"):
        if key in content.get("environment", {}):
            content["environment"][key] = None
    versions = content.get("versions", {})
    if "fedloom" in versions:
        versions["fedloom"] = versions["fedloom"].partition("+")[0]
    files.write_described(run / RECORD, content, run_files)


def check(stage: Path, folder: Path, settings: Settings) -> None:
    """Refuse a crate that contains names.

    Args:
        stage: Folder of the crate.
        folder: Config folder, whose git repository has names.
        settings: Settings of the config.

    Raises:
        FedloomError: If a file of the crate contains a name or a folder of this machine.
    """
    words = {*_names(folder)}
    folders = {str(Path(path).resolve()) for path in _folders(folder, settings)}
    package = stage / "code" / plugins.FL.name
    for path in sorted(stage.rglob("*")):
        if not path.is_file() or path.suffix == ".safetensors":  # Tensors, and their names.
            continue
        content = path.read_bytes()
        matches = [path_text for path_text in folders if path_text.encode() in content]
        if not path.is_relative_to(package):
            # Binary files contain short words by chance.
            searched = [word for word in words if len(word) > 5 or _is_text(content)]
            matches += [word for word in searched if re.search(_pattern(word), content, re.I)]
        if matches:
            inner = path.relative_to(stage)
            problem = f"{inner}: contains {min(matches)!r}, but the crate must be anonymous"
            advice = "remove it from the file, or export without --anonymous"
            raise FedloomError(problem, advice=advice)


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _pattern(word: str) -> bytes:
    return rb"(?<!\w)" + re.escape(word.encode()) + rb"(?!\w)"


def _names(folder: Path) -> Iterator[str]:
    """Return names of the user and the host, by the machine and by git."""
    host = socket.gethostname()
    names = [getpass.getuser(), host, host.partition(".")[0]]
    names += [_git(folder, "config", f"user.{key}") for key in ("name", "email")]
    for line in _git(folder, "remote", "--verbose").splitlines():
        names.append(line.split()[1])
    yield from (word for word in names if len(word) > 2 and word not in GENERIC_NAMES)


def _folders(folder: Path, settings: Settings) -> Iterator[str | Path]:
    home = Path.home()
    yield from (Path.cwd(), folder, *([home] if len(home.parts) > 2 else []))
    yield from (settings.results, settings.store, settings.data, *settings.plugins)
    yield from (origin for origin in settings.sources.values() if "://" not in origin)


def _git(folder: Path, *words: str) -> str:
    try:
        process = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return process.stdout.strip() if process.returncode == 0 else ""
