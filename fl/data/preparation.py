"""From raw files to arrays, and from arrays to who holds which sample.

Making what runs read, once: prepared data sets and partitions, each under its identity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fl.base import fields, identity
from fl.base.errors import DataError
from fl.base.files import sha256, write_json
from fl.base.registry import Component, component_of
from fl.data.dataset import (
    Dataset,
    Spec,
    own_files_by_name,
    raw_folder_name,
    raw_sources,
)
from fl.data.download import Lock, fetch
from fl.data.own_files import content_hash
from fl.data.prepared import DESCRIPTION, Prepared, Writer


@dataclasses.dataclass(frozen=True)
class SourcePolicy:
    """Where the raw files of a data set come from, and what they are held to.

    Attributes:
        origin: See `fetch`.
        lock: The checksums of files whose publisher states none.
        content: SHA-256 that the user's own files (`own_files_by_name`) must have, by name.
    """

    origin: str | None = None
    lock: Lock | None = None
    content: Mapping[str, str] = dataclasses.field(default_factory=dict)


DEFAULT_POLICY = SourcePolicy()
"""From their publishers, held to their checksums."""


def fetch_sources(
    dataset: Dataset, raw: str | Path, supply: SourcePolicy = DEFAULT_POLICY
) -> list[Path]:
    """The raw files of a data set, fetched into ``raw`` unless they are there already.

    Raises:
        DataError: If a file cannot be had, or if one of the user's own has another content than
            ``supply`` states.
    """
    users, known = own_files_by_name(dataset, supply.origin), supply.content
    _check_hashes(known, {name: content_hash(users[name]) for name in users if name in known})
    # What is the user's own is held to its content alone, and not to the lock.
    return [
        fetch(
            source,
            raw,
            supply.origin,
            None if source.name in users else supply.lock,
            known.get(source.name),
        )
        for source in raw_sources(dataset)
    ]


def _check_hashes(expected: Mapping[str, str], actual: Mapping[str, str]) -> None:
    """Raise a `DataError` for the first file that is not what it was, or what it must be."""
    for name in expected.keys() & actual.keys():
        if expected[name] != actual[name]:
            raise DataError(
                f"{name}: has changed since it was planned what to do with it; start again, and"
                " what is made of it gets another name"
            )


def prepare_folder(
    dataset: Dataset,
    name: str,
    raw: str | Path,
    folder: str | Path,
    supply: SourcePolicy = DEFAULT_POLICY,
) -> Prepared:
    """Fetch the sources of ``dataset`` into ``raw``, prepare it in ``folder``, once, and open it.

    A folder that is complete stays as it is.

    Raises:
        DataError: If the folder was made from other files than the lock says; if it is damaged; or
            if a source cannot be had.
    """
    folder = Path(folder)
    if not (folder / DESCRIPTION).exists():
        _prepare_new(dataset, name, Path(raw), folder, supply)
    prepared = Prepared.open(folder)
    _check_lock(prepared, dataset, supply)
    return prepared


def _prepare_new(
    dataset: Dataset, name: str, raw: Path, folder: Path, supply: SourcePolicy
) -> None:
    paths = fetch_sources(dataset, raw, supply)
    known = {source.name: source.sha256 for source in raw_sources(dataset)}
    users = own_files_by_name(dataset, supply.origin)
    contents = {path.name: known[path.name] or sha256(path) for path in paths}
    contents |= {name: content_hash(files) for name, files in users.items() if name not in contents}
    _check_hashes(supply.content, contents)
    made_from = [{"name": name, "sha256": sha} for name, sha in contents.items()]
    try:
        with Writer(folder) as writer:
            dataset.read(raw, writer)
            _check_hashes(contents, {name: content_hash(files) for name, files in users.items()})
            params = dataclasses.asdict(dataset)
            writer.finish({"name": name, "params": params, "sources": made_from})
    except OSError as error:
        raise DataError(f"{folder}: cannot be prepared ({error})") from error


def _check_lock(prepared: Prepared, dataset: Dataset, supply: SourcePolicy) -> None:
    if supply.lock is None:
        return
    locked = {source.name for source in raw_sources(dataset) if not source.sha256}
    locked -= own_files_by_name(dataset, supply.origin).keys()
    made_from = {source["name"]: source["sha256"] for source in prepared.sources}
    for name in sorted(locked & made_from.keys()):
        expected = supply.lock.expected(name)
        if expected not in (None, made_from[name]):
            raise DataError(
                f"{prepared.folder}: was prepared from a {name} with sha256 {made_from[name]}, but"
                f" {supply.lock.path} says {expected}; delete the folder to prepare it again, or"
                " mend the lock file"
            )


def dataset_id(spec: Spec) -> str:
    """``digits-<hash>``: the spec, the reader's code and the source files' checksums.

    The spec has the content of the user's own files, so that this asks for none of them.
    """
    entry, dataset = component_of("data set", spec)
    sources = [[source.name, source.sha256] for source in raw_sources(dataset)]
    code = [
        identity.root_code(identity.entry("data set", entry.name)),
        identity.root_code(identity.DATA),
    ]
    return f"{entry.name}-{identity.digest([spec_without_defaults(entry, spec), code, sources])}"


def spec_without_defaults(entry: Component, spec: Spec) -> dict[str, Any]:
    """What names data: a spec without its defaults, see `fl.plan.run_spec.RunSpec`."""
    usual = fields.at_default(entry.target, spec)
    return {key: value for key, value in spec.items() if key not in usual}


def source_policy(spec: Spec, origins: Mapping[str, str], lock: str | Path) -> SourcePolicy:
    """Where ``sources:`` of the config and the lock file say that a data set's files come from."""
    return SourcePolicy(origins.get(spec["name"]), Lock(Path(lock), raw_folder_name(spec)))


def download_files(spec: Spec, root: Path, supply: SourcePolicy = DEFAULT_POLICY) -> None:
    """The raw files of a data set in its folder of ``<root>/raw``, and at last ``sources.json``."""
    _, dataset = component_of("data set", spec)
    folder = root / "raw" / raw_folder_name(spec)
    fetched = fetch_sources(dataset, folder, _with_content(supply, spec))
    listed = [{"name": path.name, "bytes": path.stat().st_size} for path in fetched]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "sources.json", {"dataset": spec["name"], "files": listed})


def prepare_dataset(spec: Spec, root: Path, supply: SourcePolicy = DEFAULT_POLICY) -> Prepared:
    """The data set in ``<root>/prepared/<id>``, prepared now if it is not there."""
    entry, dataset = component_of("data set", spec)
    folder = root / "prepared" / dataset_id(spec)
    raw = root / "raw" / raw_folder_name(spec)
    return prepare_folder(dataset, entry.name, raw, folder, _with_content(supply, spec))


def _with_content(supply: SourcePolicy, spec: Spec) -> SourcePolicy:
    """A supply that holds files to what was in them when it was planned what to do with them."""
    return replace(supply, content=spec.get("content", {}))
