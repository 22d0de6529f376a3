"""Folders that a config or a command line names: what they mean, and which the graph takes."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fl.base.errors import ConfigError, Location

VARIABLE = re.compile(r"\$(?:(?P<plain>[A-Za-z_]\w*)|\{(?P<braced>[^{}]*)\})", re.ASCII)

LINE_ENDS = {"Cc", "Zl", "Zp"}
"""Unicode categories of characters that end a line or control a terminal."""


@dataclass(frozen=True)
class Folders:
    """Where data are kept: raw and prepared sets below ``data``, partitions below ``results``.

    Attributes:
        sources: By data set, where its raw files come from in place of their publishers.
        lock: The file whose checksums raw files must match.
    """

    data: Path
    results: Path
    sources: Mapping[str, str]
    lock: str


def expand(text: str, location: Location) -> str:
    """``text`` with ``~``, ``~user``, ``$NAME`` and ``${NAME}`` replaced, as a shell would.

    Raises:
        ConfigError: At ``location``, for a variable that is not set or a user who is not known.
    """

    def value(match: re.Match[str]) -> str:
        name = match["plain"] or match["braced"]
        if not os.environ.get(name):
            problem = f"is {text!r}, but the environment variable {name!r} is not set"
            raise ConfigError(
                location, problem, "a variable that has a value, or the folder itself"
            )
        return os.environ[name]

    # The home first, as in a shell: a `~` inside of a variable is a character.
    home = os.path.expanduser(text)  # noqa: PTH111 `Path` would take the user's last slash away.
    if text.startswith("~") and home.startswith("~"):
        user = text.partition("/")[0]
        raise ConfigError(location, f"is {text!r}, but {user!r} is nobody's home", "a folder")
    return VARIABLE.sub(value, home)


def path_of(text: str) -> Path:
    """The path that a user wrote for a file or a folder of data; a relative one starts here."""
    return Path(expand(text, Location("path")))


def place(text: str, location: Location) -> str:
    """A folder as Snakemake and a shell are told of it, expanded and without needless slashes.

    Raises:
        ConfigError: At ``location``, for what `expand` refuses, and for names that Snakemake reads
            as something else: braces are its wildcards, ``://`` is its storage, a line is one path.
    """
    expanded = expand(text, location)
    wrong = next((what for what, is_so in _wrong(expanded).items() if is_so), None)
    if wrong is not None:
        meant = "" if expanded == text else f" ({expanded!r})"
        allowed = "a folder whose path Snakemake can carry, e.g. results"
        raise ConfigError(location, f"is {text!r}{meant}, which {wrong}", allowed)
    return str(Path(expanded))


def _wrong(text: str) -> dict[str, bool]:
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
