"""Folders named by a config or a command line: replace variables, refuse unusable names.

`WORKFLOW` and `CONFIG` come with the package: the workflow, example studies, published numbers.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fl.base.errors import ConfigError, Location
from fl.base.plugins import FL

VARIABLE = re.compile(r"\$(?:(?P<plain>[A-Za-z_]\w*)|\{(?P<braced>[^{}]*)\})", re.ASCII)

LINE_ENDS = {"Cc", "Zl", "Zp"}
"""Unicode categories of characters that end a line or control a terminal."""


@dataclass(frozen=True)
class Folders:
    """Folders of data sets and partitions.

    Attributes:
        data: Folder of raw and prepared data sets.
        results: Folder of partitions.
        sources: By data set, the place of its raw files, if it is not the publisher's.
        lock: The file with the checksums of raw files.
    """

    data: Path
    results: Path
    sources: Mapping[str, str]
    lock: str


def partition_folder(results: Path, name: str) -> Path:
    """Return the folder of a partition, by its id."""
    return results / "partitions" / name


def expand(text: str, location: Location) -> str:
    """Replace ``~``, ``~user``, ``$NAME`` and ``${NAME}`` in a text, as a shell does.

    Raises:
        ConfigError: If a variable is not set or a user does not exist.
    """

    def value(match: re.Match[str]) -> str:
        name = match["plain"] or match["braced"]
        if not os.environ.get(name):
            problem = f"is {text!r}, but the environment variable {name!r} is not set"
            advice = "set the variable, or write the folder itself"
            raise ConfigError(location, problem, advice=advice)
        return os.environ[name]

    # The home first, as in a shell: a `~` inside of a variable is a character.
    home = os.path.expanduser(text)  # noqa: PTH111 `Path` would take the user's last slash away.
    if text.startswith("~") and home.startswith("~"):
        user = text.partition("/")[0]
        problem = f"is {text!r}, but no user has the home folder {user!r}"
        raise ConfigError(location, problem, "a folder")
    return VARIABLE.sub(value, home)


def path_of(text: str) -> Path:
    """Return the path of a file or folder of data; a relative path starts at the current folder."""
    return Path(expand(text, Location("path")))


def checked_folder(text: str, location: Location) -> str:
    """Return a folder for Snakemake and a shell: expanded, without needless slashes.

    Raises:
        ConfigError: If `expand` refuses it, or Snakemake would misread the name: braces are its
            wildcards, ``://`` is its storage, and a path is one line.
    """
    expanded = expand(text, location)
    fault = next((fault for fault, is_present in _faults(expanded).items() if is_present), None)
    if fault is not None:
        meaning = "" if expanded == text else f" ({expanded!r})"
        advice = "a plain path such as results"
        raise ConfigError(location, f"is {text!r}{meaning}, which {fault}", advice=advice)
    return str(Path(expanded))


def _faults(text: str) -> dict[str, bool]:
    """Return by fault that a path may have whether this one has it."""
    return {
        "is empty": not text,
        "has braces": bool({"{", "}"} & set(text)),
        "has a line break or a control character": any(
            unicodedata.category(char) in LINE_ENDS for char in text
        ),
        "begins or ends with a blank": text != text.strip(),
        "begins with a dash": text.startswith("-"),
        "is an address": "://" in text,
    }


SHARED_FOLDERS = FL / "share" if (FL / "share").is_dir() else FL.parent
WORKFLOW = SHARED_FOLDERS / "workflow"
CONFIG = SHARED_FOLDERS / "config"
