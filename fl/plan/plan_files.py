"""Files of a plan, in ``<results>/plan/``: JSON with the number of a format and a checksum.

They are rewritten only when their content changes, because the graph goes by their times. One that
was edited, truncated or written by another version of Fedloom is refused: a plan is made in
seconds. The fingerprint of a plan is a hash of config, code, and the variables that config names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fl.base import identity, plugins, registry
from fl.base.digest import digest
from fl.base.errors import DataError
from fl.base.files import disk_errors, parse_json, sha256, write_json
from fl.base.places import VARIABLE
from fl.plan import bundle
from fl.plan.bundle import Bundle
from fl.plan.config import Settings

FORMAT = 1
"""To be raised when readers need what earlier versions did not write."""

KINDS = ("studies", "bundles", "datasets", "partitions", "analyses")
"""The folders of a plan, with a file for each of what they are named after."""


def write(path: Path, content: Any) -> Any:
    """Write ``content`` unless the file has it already; returns it as it will be read."""
    plain = json.loads(json.dumps(content))
    sealed = {**plain, "format": FORMAT, "checksum": digest([FORMAT, plain])}
    if read(path) != sealed:
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, sealed)
    return plain


def read_summary(home: Path) -> dict[str, Any]:
    """``plan.json`` of a folder, empty where there is none; `DataError` if it was changed."""
    path = home / "plan.json"
    return read_checked(path) if path.exists() else {}


def read_item(home: Path, kind: str, name: str) -> dict[str, Any]:
    """A study, bundle, data set, partition or analysis of the plan, or `DataError`."""
    return read_checked(home / kind / f"{name}.json")


def read_bundle(home: Path, name: str) -> Bundle:
    """A bundle of the plan, or `DataError`."""
    return bundle.read(home / "bundles" / f"{name}.json")


def read_checked(path: Path) -> dict[str, Any]:
    """What a file of a plan says; `DataError` if it is not as it was written."""
    try:
        content = parse_json(path.read_bytes())
        form, checksum = content.pop("format"), content.pop("checksum")
        whole = form == FORMAT and checksum == digest([FORMAT, content])
        reason = "" if whole else "changed since, or by another version of Fedloom"
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    if reason:
        allowed = "a file that `python -m fl plan --write` wrote, which makes it anew"
        raise DataError(
            f"{path}: cannot be read as a part of a plan ({reason}). Allowed: {allowed}"
        )
    return dict(content)


def read(path: Path) -> dict[str, Any]:
    """A file of the plan as it is, checked by nobody; empty if there is none."""
    try:
        content = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


TEMPLATES = registry.ROOT / "report" / "templates"
"""Templates of reports: when they change, reports are made again."""


def fingerprint(folder: Path, wanted: Sequence[str], settings: Settings) -> str:
    """A hash over the bytes of what the plan of some studies depends on in config and code.

    That is all code, and all config but the files of other studies.
    """
    return _of_studies(_shared(folder, settings), folder, wanted)


def fingerprints(folder: Path, studies: Iterable[str], settings: Settings) -> dict[str, str]:
    """By study, `of` that study alone; what all of them share is read once."""
    shared = _shared(folder, settings)
    return {name: _of_studies(shared, folder, [name]) for name in studies}


def _of_studies(shared: str, folder: Path, wanted: Sequence[str]) -> str:
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
