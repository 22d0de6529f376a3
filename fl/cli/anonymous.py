"""What a crate for a blind review leaves out, and a last look at whether anything was left in.

Left out are the commit and the settings of a cluster. What a run is named by cannot be changed:
where a file tells the user's or the host's name, a name, an address or a remote of git's, or a
folder of this machine, the crate is refused, with the file and the word.
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

COMMON = ("root", "user", "localhost")
"""Names of users and hosts that are nobody's, and words of the code."""


def record(run: Path) -> None:
    """Take the commit out of a run's record, and seal it again."""
    content = files.read_sealed(run / RECORD)
    described = content.pop("files")
    for key in ("commit", "dirty"):
        if key in content.get("environment", {}):
            content["environment"][key] = None
    versions = content.get("versions", {})
    if "fedloom" in versions:
        versions["fedloom"] = versions["fedloom"].partition("+")[0]
    files.write_described(run / RECORD, content, described)


def check(stage: Path, folder: Path, settings: Settings) -> None:
    """Refuse (`FedloomError`) a crate that tells whose it is.

    Args:
        folder: The config's, in which git is asked.
    """
    words = {*_names(folder)}
    places = {str(Path(place).resolve()) for place in _folders(folder, settings)}
    ours = stage / "code" / plugins.FL.name
    for path in sorted(stage.rglob("*")):
        if not path.is_file() or path.suffix == ".safetensors":  # Tensors, and their names.
            continue
        content = path.read_bytes()
        told = [place for place in places if place.encode() in content]
        if not path.is_relative_to(ours):
            # A short word stands by chance in what is packed.
            apt = [word for word in words if len(word) > 5 or not _packed(content)]
            told += [word for word in apt if re.search(_whole(word), content, re.IGNORECASE)]
        if told:
            inner = path.relative_to(stage)
            problem = f"{inner}: tells {min(told)!r}, and the crate is to be anonymous"
            raise FedloomError(f"{problem}. Allowed: files without it, or without --anonymous")


def _packed(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return True
    return False


def _whole(word: str) -> bytes:
    return rb"(?<!\w)" + re.escape(word.encode()) + rb"(?!\w)"


def _names(folder: Path) -> Iterator[str]:
    """Who and where we are, for the machine and for git."""
    host = socket.gethostname()
    told = [getpass.getuser(), host, host.partition(".")[0]]
    told += [_git(folder, "config", f"user.{key}") for key in ("name", "email")]
    for line in _git(folder, "remote", "--verbose").splitlines():
        told.append(line.split()[1])
    yield from (word for word in told if len(word) > 2 and word not in COMMON)


def _folders(folder: Path, settings: Settings) -> Iterator[str | Path]:
    home = Path.home()
    yield from (Path.cwd(), folder, *([home] if len(home.parts) > 2 else []))
    yield from (settings.results, settings.store, settings.data, *settings.plugins)
    yield from (origin for origin in settings.sources.values() if "://" not in origin)


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
