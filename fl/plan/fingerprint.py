"""What a plan follows from, as one hash: config, code, and the variables that config names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from fl.base import identity, plugins, registry
from fl.base.files import sha256
from fl.base.places import VARIABLE
from fl.plan.config import Settings

TEMPLATES = registry.ROOT / "report" / "templates"
"""Templates of reports: when they change, reports are made again."""


def of(folder: Path, wanted: Sequence[str], settings: Settings) -> str:
    """A hash over the bytes of what the plan of some studies depends on in config and code.

    That is all code, and all config but the files of other studies.
    """
    return _whole(_shared(folder, settings), folder, wanted)


def each(folder: Path, studies: Iterable[str], settings: Settings) -> dict[str, str]:
    """By study, `of` that study alone; what all of them share is read once."""
    shared = _shared(folder, settings)
    return {name: _whole(shared, folder, [name]) for name in studies}


def _whole(shared: str, folder: Path, wanted: Sequence[str]) -> str:
    study_files = {folder / "studies" / f"{name}.yaml" for name in wanted}
    return identity.digest([shared, list(wanted), _hashes(study_files), _variables(study_files)])


def _shared(folder: Path, settings: Settings) -> str:
    """Of what every study depends on."""
    config = {*folder.rglob("*.yaml"), *folder.rglob("*.csv")}
    config = {path for path in config if path.parent != folder / "studies"}
    code = {path for root in plugins.roots().values() for path in root.rglob("*.py")}
    code |= {*TEMPLATES.glob("report.*"), identity.NUMBERS}
    return identity.digest([asdict(settings), _hashes({*config, *code}), _variables(config)])


def _variables(files: Iterable[Path]) -> dict[str, str | None]:
    """The values of all variables that these files name, and of what ``~`` means."""
    texts = (path.read_bytes().decode(errors="replace") for path in files if path.is_file())
    names = {
        match["plain"] or match["braced"] for text in texts for match in VARIABLE.finditer(text)
    }
    return {name: os.environ.get(name) for name in sorted({*names, "HOME"})}


def _hashes(files: Iterable[Path]) -> dict[str, str]:
    return {str(path): sha256(path) for path in files if path.is_file()}
