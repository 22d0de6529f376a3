"""Downloads of raw files and preparation of data sets, each once and under its id."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fl.base import fields, identity
from fl.base.errors import DataError
from fl.base.files import sha256, write_json
from fl.base.hashes import content_hash
from fl.base.registry import Component, component_of
from fl.base.specs import ComponentSpec
from fl.data.dataset import (
    Dataset,
    own_files_by_name,
    raw_folder_name,
    raw_sources,
)
from fl.data.download import Lock, fetch
from fl.data.prepared import DESCRIPTION, Prepared, Writer


@dataclasses.dataclass(frozen=True)
class SourcePolicy:
    """Origin of the raw files of a data set, and the checksums that they must have.

    Attributes:
        origin: Folder or address of the files in place of their publisher's, see `fetch`.
        lock: Checksums of files whose publisher states none.
        content: SHA-256 that the user's own files (`own_files_by_name`) must have, by name.
    """

    origin: str | None = None
    lock: Lock | None = None
    content: Mapping[str, str] = dataclasses.field(default_factory=dict)


DEFAULT_POLICY = SourcePolicy()
"""Files from their publishers with the published checksums."""


def fetch_sources(
    dataset: Dataset, raw: str | Path, policy: SourcePolicy = DEFAULT_POLICY
) -> list[Path]:
    """Fetch the raw files of a data set into ``raw`` unless they exist already.

    Returns:
        The paths of the files.

    Raises:
        DataError: If a file cannot be fetched, or if the content of one of the user's own files
            differs from ``policy``.
    """
    own_files, expected = own_files_by_name(dataset, policy.origin), policy.content
    _check_hashes(
        expected, {name: content_hash(own_files[name]) for name in own_files if name in expected}
    )
    # The user's own files are compared with the planned content only, not with the lock file.
    return [
        fetch(
            source,
            raw,
            policy.origin,
            None if source.name in own_files else policy.lock,
            expected.get(source.name),
        )
        for source in raw_sources(dataset)
    ]


def _check_hashes(expected: Mapping[str, str], actual: Mapping[str, str]) -> None:
    """Raise a `DataError` for the first file whose hash differs."""
    for name in expected.keys() & actual.keys():
        if expected[name] != actual[name]:
            raise DataError(
                f"{name}: the file has changed since the study was planned",
                advice="start again; the results then get a new name",
            )


def prepare_folder(
    dataset: Dataset,
    name: str,
    raw: str | Path,
    folder: str | Path,
    policy: SourcePolicy = DEFAULT_POLICY,
) -> Prepared:
    """Open the prepared data set in ``folder``; fetch its files and prepare it if necessary.

    Args:
        dataset: The data set.
        name: Its name.
        raw: The folder of raw files.
        folder: The folder of the prepared data set; a complete folder stays as it is.
        policy: Origin and checksums of the raw files.

    Raises:
        DataError: If the folder is damaged, if it was made from files with checksums that differ
            from the lock file, or if a file cannot be fetched.
    """
    folder = Path(folder)
    if not (folder / DESCRIPTION).exists():
        _prepare_new(dataset, name, Path(raw), folder, policy)
    prepared = Prepared.open(folder)
    _check_lock(prepared, dataset, policy)
    return prepared


def _prepare_new(
    dataset: Dataset, name: str, raw: Path, folder: Path, policy: SourcePolicy
) -> None:
    paths = fetch_sources(dataset, raw, policy)
    published = {source.name: source.sha256 for source in raw_sources(dataset)}
    own_files = own_files_by_name(dataset, policy.origin)
    hashes = {path.name: published[path.name] or sha256(path) for path in paths}
    hashes |= {name: content_hash(files) for name, files in own_files.items() if name not in hashes}
    _check_hashes(policy.content, hashes)
    sources = [{"name": name, "sha256": sha256_hex} for name, sha256_hex in hashes.items()]
    try:
        with Writer(folder) as writer:
            dataset.read(raw, writer)
            _check_hashes(hashes, {name: content_hash(files) for name, files in own_files.items()})
            params = dataclasses.asdict(dataset)
            writer.finish({"name": name, "params": params, "sources": sources})
    except OSError as error:
        raise DataError(f"{folder}: the data set cannot be prepared ({error})") from error


def _check_lock(prepared: Prepared, dataset: Dataset, policy: SourcePolicy) -> None:
    if policy.lock is None:
        return
    names = {source.name for source in raw_sources(dataset) if not source.sha256}
    names -= own_files_by_name(dataset, policy.origin).keys()
    hashes = {source["name"]: source["sha256"] for source in prepared.sources}
    for name in sorted(names & hashes.keys()):
        expected = policy.lock.expected(name)
        if expected not in (None, hashes[name]):
            raise DataError(
                f"{prepared.folder}: was made from a file {name} with sha256 {hashes[name]}, but"
                f" {policy.lock.path} says {expected}",
                advice="delete the folder to prepare it again, or correct the lock file",
            )


def dataset_id(spec: ComponentSpec, code_of: identity.CodeOf = identity.root_code) -> str:
    """Return the id of a data set: ``digits-<hash of spec, code and published checksums>``.

    The spec contains the hashes of the user's own files, so that no file is read here.

    Args:
        spec: The spec of the data set.
        code_of: Name of the code of a root.
    """
    component, dataset = component_of("data set", spec)
    sources = [[source.name, source.sha256] for source in raw_sources(dataset)]
    code = [
        code_of(identity.entry("data set", component.name)),
        code_of(identity.DATA),
    ]
    digest = identity.digest([spec_without_defaults(component, spec), code, sources])
    return f"{component.name}-{digest}"


def spec_without_defaults(component: Component, spec: ComponentSpec) -> dict[str, Any]:
    """Return the keys of a spec that go into an id: those that differ from their defaults."""
    defaults = fields.at_default(component.target, spec)
    return {key: value for key, value in spec.items() if key not in defaults}


def source_policy(
    spec: ComponentSpec, origins: Mapping[str, str], lock: str | Path
) -> SourcePolicy:
    """Return a data set's policy: its origin in ``sources:`` of the config and its lock."""
    return SourcePolicy(origins.get(spec["name"]), Lock(Path(lock), raw_folder_name(spec)))


def raw_folder(root: Path, spec: ComponentSpec) -> Path:
    """Return the folder of a data set's raw files in the folder of data."""
    return root / "raw" / raw_folder_name(spec)


def prepared_folder(root: Path, name: str) -> Path:
    """Return the folder of a prepared data set, by its id."""
    return root / "prepared" / name


def download_files(spec: ComponentSpec, root: Path, policy: SourcePolicy = DEFAULT_POLICY) -> None:
    """Fetch the raw files of a data set into its folder of ``<root>/raw``; list them there."""
    _, dataset = component_of("data set", spec)
    folder = raw_folder(root, spec)
    fetched = fetch_sources(dataset, folder, _with_content(policy, spec))
    listed = [{"name": path.name, "bytes": path.stat().st_size} for path in fetched]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "sources.json", {"dataset": spec["name"], "files": listed})


def prepare_dataset(
    spec: ComponentSpec, root: Path, policy: SourcePolicy = DEFAULT_POLICY
) -> Prepared:
    """Return the data set in ``<root>/prepared/<id>``; prepare it if it does not exist."""
    component, dataset = component_of("data set", spec)
    folder = prepared_folder(root, dataset_id(spec))
    raw = raw_folder(root, spec)
    return prepare_folder(dataset, component.name, raw, folder, _with_content(policy, spec))


def _with_content(policy: SourcePolicy, spec: ComponentSpec) -> SourcePolicy:
    """Return the policy with the planned content of the user's own files."""
    return replace(policy, content=spec.get("content", {}))
