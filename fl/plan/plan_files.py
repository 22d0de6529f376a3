"""Files of a plan, in ``<results>/plan/``: JSON with the number of a format and a checksum.

They are rewritten only when their content changes, because the graph goes by their times. One that
was edited, truncated or written by another version of Fedloom is refused: a plan is made in
seconds. The fingerprint of a plan is a hash of config, code, and the variables that config names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from fl.base import identity, plugins, registry
from fl.base.dataclass_json import Json, as_json, from_json
from fl.base.errors import DataError, Location
from fl.base.files import disk_errors, parse_json, sha256, write_json
from fl.base.folders import VARIABLE
from fl.base.hashes import change_stamp, digest
from fl.base.specs import ComponentSpec
from fl.plan import bundle, config, study_files
from fl.plan.analyses import PlannedAnalysis
from fl.plan.bundle import Bundle
from fl.plan.config import Settings
from fl.plan.study_plan import StudyPlan

Class = TypeVar("Class")

FORMAT = 3
"""Number to be raised when readers need what earlier versions did not write."""

TEMPLATES = registry.ROOT / "report" / "templates"
"""Templates of reports: when they change, reports are made again."""


@dataclass(frozen=True)
class PlannedPartition:
    """The data set and the scheme of a partition.

    Attributes:
        dataset: Id of the data set.
        spec: Spec of the data set.
        scheme: Spec of the partition scheme.
    """

    dataset: str
    spec: ComponentSpec
    scheme: ComponentSpec


@dataclass(frozen=True)
class IndexedStudy:
    """A study in the index: ids of what it needs, and the hash of its plan."""

    hash: str
    bundles: list[str]
    partitions: list[str]
    analyses: list[str]


@dataclass(frozen=True)
class IndexedBundle:
    """A bundle in the index.

    Attributes:
        runs: By the id of a run, the optional files that must exist.
        dataset: Id of the data set.
        partition: Id of the partition.
        after: The bundles that must be trained before.
    """

    runs: dict[str, list[str]]
    dataset: str
    partition: str
    after: list[str]


@dataclass(frozen=True)
class PlanIndex:
    """Content of ``plan.json``, from which Snakemake makes its graph.

    Attributes:
        key: The plan's fingerprint.
        settings: The settings in ``config.yaml``.
        watched: Stamps of the user's files by path.
        studies: The studies by name.
        bundles: The bundles by id.
        analyses: By the id of an analysis, the bundles whose runs it reads.
    """

    key: str
    settings: Settings
    watched: dict[str, str]
    studies: dict[str, IndexedStudy]
    bundles: dict[str, IndexedBundle]
    analyses: dict[str, list[str]]

    @property
    def runs(self) -> set[str]:
        """The ids of all runs."""
        return {run for bundle in self.bundles.values() for run in bundle.runs}


Kind = Literal["studies", "bundles", "datasets", "partitions", "jobs"]
"""Folders of a plan, which hold a file for each item."""


def plan_folder(results: str | Path) -> Path:
    """Return the folder of the plan in a folder of results."""
    return Path(results) / "plan"


def file_of(results: str | Path, kind: Kind, name: str) -> Path:
    """Return the file of an item of the plan."""
    return plan_folder(results) / kind / f"{name}.json"


def all_files(results: str | Path, kind: Kind) -> list[Path]:
    """Return the files of all items of a kind, those of earlier plans too, sorted."""
    return sorted((plan_folder(results) / kind).glob("*.json"))


def index_file(results: str | Path) -> Path:
    """Return the file of the index, by which Snakemake goes."""
    return plan_folder(results) / "plan.json"


def read_settings(folder: Path) -> Settings:
    """Return ``config.yaml`` of a config folder; without it, what `fl.run` takes where it ran.

    Raises:
        ConfigError: For what is wrong with it; and without it, if there are no results either.
    """
    settings = Settings(studies=())
    is_folder_of_calls = plan_folder(settings.results).is_dir()
    if is_folder_of_calls and not (folder / "config.yaml").exists():
        return settings
    return config.read_settings(folder)


def is_stored_alone(folder: Path, results: str | Path, name: str) -> bool:
    """Whether a study has a plan and no file in a config folder, as that of a call of `fl.run`."""
    is_file = study_files.file(folder, name).exists()
    return not is_file and file_of(results, "studies", name).exists()


def write(path: Path, content: Any) -> None:
    """Write a dataclass or a mapping with its checksum, unless the file has it already."""
    plain = as_json(content)
    sealed = {**plain, "format": FORMAT, "checksum": digest([FORMAT, plain])}
    if read_unchecked(path) != sealed:
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, sealed)


def read_index(results: str | Path) -> PlanIndex | None:
    """Return the index of the plan in a folder of results; None if there is no such file.

    Raises:
        DataError: If the file was changed.
    """
    path = index_file(results)
    return read(PlanIndex, path) if path.exists() else None


def read_current_index(folder: Path, settings: Settings) -> PlanIndex | None:
    """Return the index of the written plan; None if its studies must be planned again.

    That is so if config, code or a file of the user's changed since, or if files are missing.
    """
    try:
        index = read_index(settings.results)
    except DataError:
        return None
    is_current = (
        index is not None
        and index.key == fingerprint(folder, [*index.studies], settings)
        and all(change_stamp([Path(path)]) == stamp for path, stamp in index.watched.items())
        and _is_complete(settings.results, index)
    )
    return index if is_current else None


def _is_complete(results: str, index: PlanIndex) -> bool:
    """Whether the files of all studies and bundles that an index names exist."""
    names_by_kind: dict[Kind, Iterable[str]] = {
        "studies": index.studies,
        "bundles": index.bundles,
    }
    return all(
        file_of(results, kind, name).exists()
        for kind, names in names_by_kind.items()
        for name in names
    )


def read_study(results: str | Path, name: str) -> StudyPlan:
    """Return the plan of a study; `DataError` if it cannot be read."""
    return read(StudyPlan, file_of(results, "studies", name))


def read_bundle(results: str | Path, name: str) -> Bundle:
    """Return a bundle of the plan; `DataError` if it cannot be read."""
    return bundle.read(file_of(results, "bundles", name))


def read_checked_bundle(results: str | Path, name: str) -> Bundle:
    """Return a bundle of the plan; `DataError` if its file is not as it was written."""
    return Bundle.from_json(read_checked(file_of(results, "bundles", name)), Location(name))


def read_dataset(results: str | Path, name: str) -> ComponentSpec:
    """Return the spec of a data set of the plan, by id or name; `DataError` if there is none."""
    return read_checked(_named_file(results, "datasets", name))


def read_partition(results: str | Path, name: str) -> PlannedPartition:
    """Return a partition of the plan, by id or name; `DataError` if there is none."""
    return read(PlannedPartition, _named_file(results, "partitions", name))


def read_analysis(results: str | Path, name: str) -> tuple[StudyPlan, PlannedAnalysis]:
    """Return the study that an analysis belongs to, and the analysis.

    Raises:
        DataError: If the plan cannot be read, or has no such analysis.
    """
    index = read_index(results)
    studies = index.studies if index else {}
    for study_name, indexed in studies.items():
        if name in indexed.analyses:
            study = read_study(results, study_name)
            return study, next(planned for planned in study.analyses if planned.analysis == name)
    raise DataError(
        f"{index_file(results)}: has no analysis {name!r}",
        advice="`fedloom plan STUDY --write`, which plans a study with it",
    )


def read(target: type[Class], path: Path) -> Class:
    """Return the dataclass in a file of a plan.

    Raises:
        DataError: If there is no such file, or if it is not as it was written.
    """
    return from_json(target, read_checked(path))


def read_checked(path: Path) -> dict[str, Json]:
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
    except FileNotFoundError:
        raise DataError(
            f"{path}: does not exist, so the plan has nothing of this name",
            advice="`fedloom plan STUDY --write`, which writes the plan's files",
        ) from None
    except (OSError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
    if reason:
        raise DataError(
            f"{path}: cannot be read as a file of a plan ({reason})",
            advice="`fedloom plan --write`, which makes it anew",
        )
    return dict(content)


def _named_file(results: str | Path, kind: Literal["datasets", "partitions"], name: str) -> Path:
    """Return the file with an id of the plan, or with the only id that has a name before its hash.

    Raises:
        DataError: If there is no such id and not one such name.
    """
    path = file_of(results, kind, name)
    if path.exists() or not (index := read_index(results)):
        return path
    bundles = index.bundles.values()
    planned = {item.dataset if kind == "datasets" else item.partition for item in bundles}
    ids = sorted(id for id in planned if id.rpartition("-")[0] == name)
    if len(ids) == 1:
        return file_of(results, kind, ids[0])
    problem = f"{path}: does not exist, so the plan has nothing of this name"
    if ids:
        problem = f"{name}: is the name of {len(ids)} planned {kind}, so that it needs an id"
    advice = "" if ids else "`fedloom plan STUDY --write`, which plans a study with it"
    raise DataError(problem, ", ".join(ids or sorted(planned)), advice)


def read_unchecked(path: Path) -> dict[str, Json]:
    """Return the content of a file of a plan without any check; empty if there is none."""
    try:
        content = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def store_of(results: str | Path) -> str | None:
    """Return the folder of the runs by ``plan.json``; None if it cannot be read."""
    settings = read_unchecked(index_file(results)).get("settings")
    store = settings.get("store") if isinstance(settings, dict) else None
    return store if isinstance(store, str) else None


def fingerprint(folder: Path, studies: Sequence[str], settings: Settings) -> str:
    """Return a hash over what the plan of some studies depends on in config and code.

    That is all code, and all config except the files of other studies.
    """
    own = {study_files.file(folder, name) for name in studies}
    written = {*folder.rglob("*.yaml"), *folder.rglob("*.csv")}
    others = folder / study_files.FOLDER
    sources = {path for path in written if path in own or others not in path.parents}
    code = {path for root in plugins.roots().values() for path in root.rglob("*.py")}
    code |= {*TEMPLATES.glob("report.*"), identity.NUMBERS}
    hashes = {str(path): sha256(path) for path in sources | code if path.is_file()}
    return digest([asdict(settings), list(studies), hashes, _variables(sources)])


def _variables(files: Iterable[Path]) -> dict[str, str | None]:
    """Values of the environment variables that files name, and of ``HOME`` for ``~``."""
    names = {"HOME"}
    for path in files:
        text = path.read_bytes().decode(errors="replace") if path.is_file() else ""
        names |= {match["plain"] or match["braced"] for match in VARIABLE.finditer(text)}
    return {name: os.environ.get(name) for name in sorted(names)}
