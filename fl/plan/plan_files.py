"""Files of a plan, in ``<results>/plan/``: JSON with the number of a format and a checksum.

They are rewritten only when their content changes, because the graph goes by their times. One that
was edited, truncated or written by another version of Fedloom is refused: a plan is made in
seconds. The fingerprint of a plan is a hash of config, code, and the variables that config names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypedDict

from fl.base import identity, plugins, registry
from fl.base.digest import digest
from fl.base.errors import DataError
from fl.base.files import disk_errors, parse_json, sha256, write_json
from fl.base.folders import VARIABLE
from fl.plan import bundle
from fl.plan.bundle import Bundle
from fl.plan.config import Settings

FORMAT = 2
"""Number to be raised when readers need what earlier versions did not write."""

ItemKind = Literal["studies", "bundles", "datasets", "partitions", "analyses"]
"""A folder of a plan, with a file for each study, bundle, ..."""

TEMPLATES = registry.ROOT / "report" / "templates"
"""Templates of reports: when they change, reports are made again."""


class StudySummary(TypedDict):
    """A study in ``plan.json``: ids of what it needs, and the hash of its plan."""

    hash: str
    bundles: list[str]
    partitions: list[str]
    analyses: list[str]


class BundleSummary(TypedDict):
    """A bundle in ``plan.json``.

    ``runs`` are ids of runs, ``keep`` has optional files by run, ``after`` the bundles that must be
    trained before.
    """

    runs: list[str]
    keep: dict[str, list[str]]
    dataset: str
    partition: str
    after: list[str]


class AnalysisSummary(TypedDict):
    """An analysis in ``plan.json``: ids of the bundles whose runs it reads."""

    bundles: list[str]


class PlanSummary(TypedDict):
    """Content of ``plan.json``, from which Snakemake makes its graph.

    ``key`` is the plan's fingerprint, ``settings`` are those of ``config.yaml``, ``watched`` has
    stamps of the user's files by path, ``runs`` all ids of runs.
    """

    key: str
    settings: dict[str, Any]
    watched: dict[str, str]
    runs: list[str]
    studies: dict[str, StudySummary]
    bundles: dict[str, BundleSummary]
    analyses: dict[str, AnalysisSummary]


def as_json(content: Any) -> Any:
    """Return ``content`` as JSON reads it: with lists for tuples."""
    return json.loads(json.dumps(content))


def write(path: Path, content: Mapping[str, object]) -> None:
    """Write ``content`` with its checksum, unless the file has it already."""
    plain = as_json(content)
    sealed = {**plain, "format": FORMAT, "checksum": digest([FORMAT, plain])}
    if read_unchecked(path) != sealed:
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, sealed)


def read_summary(home: Path) -> PlanSummary | None:
    """Return the content of ``plan.json`` of a folder; None if there is no such file.

    Raises:
        DataError: If the file was changed.
    """
    path = home / "plan.json"
    if not path.exists():
        return None
    content: Any = read_checked(path)
    summary: PlanSummary = content
    return summary


def read_item(home: Path, kind: ItemKind, name: str) -> dict[str, Any]:
    """Return a study, bundle, data set, partition or analysis of the plan.

    Raises:
        DataError: If there is none, or if its file was changed.
    """
    return read_checked(home / kind / f"{name}.json")


def read_bundle(home: Path, name: str) -> Bundle:
    """Return a bundle of the plan; `DataError` if it cannot be read."""
    return bundle.read(home / "bundles" / f"{name}.json")


def read_checked(path: Path) -> dict[str, Any]:
    """Return the content of a file of a plan.

    Raises:
        DataError: If the file is not as it was written.
    """
    try:
        content = parse_json(path.read_bytes())
        content = content if isinstance(content, dict) else {}
        form, checksum = content.pop("format", None), content.pop("checksum", None)
        is_sealed = form == FORMAT and checksum == digest([FORMAT, content])
        reason = "" if is_sealed else "changed since, or by another version of Fedloom"
    except (OSError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
    if reason:
        raise DataError(
            f"{path}: cannot be read as a file of a plan ({reason})",
            advice="`fedloom plan --write`, which makes it anew",
        )
    return dict(content)


def read_unchecked(path: Path) -> dict[str, Any]:
    """Return the content of a file of a plan without any check; empty if there is none."""
    try:
        content = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def fingerprint(folder: Path, studies: Sequence[str], settings: Settings) -> str:
    """Return a hash over what the plan of some studies depends on in config and code.

    That is all code, and all config except the files of other studies.
    """
    return _fingerprint(_shared_hash(folder, settings), folder, studies)


def fingerprints(folder: Path, studies: Iterable[str], settings: Settings) -> dict[str, str]:
    """Return the `fingerprint` of each study alone; what all share is read once."""
    shared = _shared_hash(folder, settings)
    return {name: _fingerprint(shared, folder, [name]) for name in studies}


def _fingerprint(shared_hash: str, folder: Path, studies: Sequence[str]) -> str:
    files = {folder / "studies" / f"{name}.yaml" for name in studies}
    return identity.digest([shared_hash, list(studies), _hashes(files), _variables(files)])


def _shared_hash(folder: Path, settings: Settings) -> str:
    """Hash of what every study depends on."""
    config = {*folder.rglob("*.yaml"), *folder.rglob("*.csv")}
    config = {path for path in config if path.parent != folder / "studies"}
    code = {path for root in plugins.roots().values() for path in root.rglob("*.py")}
    code |= {*TEMPLATES.glob("report.*"), identity.NUMBERS}
    return identity.digest([asdict(settings), _hashes({*config, *code}), _variables(config)])


def _variables(files: Iterable[Path]) -> dict[str, str | None]:
    """Values of the environment variables that files name, and of ``HOME`` for ``~``."""
    texts = (path.read_bytes().decode(errors="replace") for path in files if path.is_file())
    names = {
        match["plain"] or match["braced"] for text in texts for match in VARIABLE.finditer(text)
    }
    return {name: os.environ.get(name) for name in sorted({*names, "HOME"})}


def _hashes(files: Iterable[Path]) -> dict[str, str]:
    return {str(path): sha256(path) for path in files if path.is_file()}
