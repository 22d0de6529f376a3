"""Making what runs read, once: prepared data sets and partitions, each under its identity."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fl import data
from fl.api.task import DEFAULT, Task
from fl.base import fields, identity, registry
from fl.base.errors import DataError, Location
from fl.base.files import find_damage, read_sealed, write_json, write_sealed, write_table
from fl.base.registry import Component, component_of
from fl.data import PUBLISHED, Supply, holdings, raw_name
from fl.data.distance import domain_distances
from fl.data.lock import Lock
from fl.data.modality import MODALITY, Modality
from fl.data.prepared import DESCRIPTION, Prepared

TABLE, ABOUT = "partition.parquet", "partition.json"
Spec = Mapping[str, Any]
"""``{"name": ..., key: value, ...}`` of a data set or a partition scheme.

That of a data set which is read from files of the user's own has their ``content``
(`fl.plan.components`).
"""


def task_entry(dataset: Spec) -> Component:
    """The registry's entry for the task that a data set says it has; it imports torch."""
    return registry.find("task", task_name(dataset), Location(dataset["name"]) / "task")


def task_name(dataset: Spec) -> str:
    """The name of a data set's task."""
    name: str = getattr(component_of("data set", dataset)[1], "task", DEFAULT)
    return name


def task_of(dataset: Spec) -> Task:
    """The task of a data set."""
    task: Task = task_entry(dataset).instantiate({})
    return task


def modalities_of(dataset: Spec) -> tuple[Modality, ...]:
    """The kinds of input that a data set has of every sample; none, where there is but one."""
    kinds: tuple[Modality, ...] = getattr(component_of("data set", dataset)[1], "modalities", ())
    return kinds


def dataset_id(spec: Spec) -> str:
    """``digits-<hash>``: the spec, the reader's code and the source files' checksums.

    The spec has the content of the user's own files, so that this asks for none of them.
    """
    entry, dataset = component_of("data set", spec)
    sources = [[source.name, source.sha256] for source in data.sources(dataset)]
    code = [
        identity.root_code(identity.entry("data set", entry.name)),
        identity.root_code(identity.DATA),
    ]
    return f"{entry.name}-{identity.digest([_named(entry, spec), code, sources])}"


def partition_id(spec: Spec, dataset: str) -> str:
    """``dirichlet-<hash>``: the spec, the scheme's code, the data set, a user's own table."""
    entry = registry.find("partition scheme", spec["name"], Location("the spec"))
    brought = holdings.content_hash(holdings.brought(spec)) if "path" in spec else ""
    scheme = identity.entry("partition scheme", entry.name)
    code = [identity.root_code(scheme), identity.root_code(identity.DATA)]
    return f"{entry.name}-{identity.digest([_named(entry, spec), code, dataset, brought])}"


def _named(entry: Component, spec: Spec) -> dict[str, Any]:
    """What names data: a spec without its defaults, see `fl.plan.run_spec.RunSpec`."""
    usual = fields.at_default(entry.target, spec)
    return {key: value for key, value in spec.items() if key not in usual}


def supply(spec: Spec, origins: Mapping[str, str], lock: str | Path) -> Supply:
    """Where ``sources:`` of the config and the lock file say that a data set's files come from."""
    return Supply(origins.get(spec["name"]), Lock(Path(lock), raw_name(spec)))


def download(spec: Spec, root: Path, supply: Supply = PUBLISHED) -> None:
    """The raw files of a data set in its folder of ``<root>/raw``, and at last ``sources.json``."""
    _, dataset = component_of("data set", spec)
    folder = root / "raw" / raw_name(spec)
    fetched = data.gather(dataset, folder, _held(supply, spec))
    listed = [{"name": path.name, "bytes": path.stat().st_size} for path in fetched]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "sources.json", {"dataset": spec["name"], "files": listed})


def prepare(spec: Spec, root: Path, supply: Supply = PUBLISHED) -> Prepared:
    """The data set in ``<root>/prepared/<id>``, prepared now if it is not there."""
    entry, dataset = component_of("data set", spec)
    folder = root / "prepared" / dataset_id(spec)
    raw = root / "raw" / raw_name(spec)
    return data.prepare(dataset, entry.name, raw, folder, _held(supply, spec))


def _held(supply: Supply, spec: Spec) -> Supply:
    """A supply that holds files to what was in them when it was planned what to do with them."""
    return replace(supply, content=spec.get("content", {}))


def partition(
    spec: Spec, dataset: Spec, root: Path, results: Path, supply: Supply = PUBLISHED
) -> pd.DataFrame:
    """The table in ``<results>/partitions/<id>``, made now if it is not there.

    Beside ``partition.parquet`` lie ``statistics.parquet``, where there are domains
    ``domains.parquet`` with the distances between them (`fl.data.distance`), and
    ``partition.json``, which says how it was made and what had to be repaired, under a seal.

    Raises:
        DataError: If the table is another one than was made.
    """
    folder = results / "partitions" / partition_id(spec, dataset_id(dataset))
    about = folder / ABOUT
    # Before 0.2.0 no seal was written.
    if not about.exists() or b'"seal"' not in about.read_bytes():
        _make_partition(spec, prepare(dataset, root, supply), folder)
    _content(folder)
    return holdings.read(folder / TABLE)


def _content(folder: Path) -> str:
    """The hash of what a partition holds; `DataError` where a file is not as it was written."""
    remedy = f"delete the folder {folder}, and it is made again"
    try:
        record = read_sealed(folder / ABOUT)
    except DataError as error:
        raise DataError(f"{error}; {remedy}") from None
    if problem := find_damage(folder / TABLE, record["files"][TABLE]):
        raise DataError(f"{problem}; {remedy}")
    return str(record["content"])


def contents_of(code: Mapping[str, str], root: Path, results: Path) -> dict[str, str]:
    """The hashes of the data set and of the partition that a run is trained on, as they are now.

    Args:
        code: The run's, which has the ids of both.

    Returns:
        By ``dataset`` and ``partition``; without what is not there.

    Raises:
        DataError: For a file that is not as it was written.
    """
    hashes = {}
    prepared, partition = root / "prepared" / code["dataset"], results / "partitions"
    if (prepared / DESCRIPTION).exists():
        hashes["dataset"] = Prepared.open(prepared).verify()
    if (partition / code["partition"] / ABOUT).exists():
        hashes["partition"] = _content(partition / code["partition"])
    return hashes


def another(record: Mapping[str, Any], root: Path, results: Path) -> str | None:
    """What is wrong with the data on which a finished run was trained, where they are there.

    Args:
        record: The run's ``run.json``.
    """
    try:
        now = contents_of(record["code"], root, results)
    except DataError as error:
        return str(error)
    for kind, content in now.items():
        if record.get("data", {}).get(kind, content) != content:
            return f"{record['code'][kind]}: is another {kind} than the run was trained on"
    return None


def _make_partition(spec: Spec, prepared: Prepared, folder: Path) -> None:
    entry = registry.find("partition scheme", spec["name"], Location("the spec"))
    values = {key: value for key, value in spec.items() if key != "name"}
    table = deal(entry.target, values, prepared, entry.name)
    folder.mkdir(parents=True, exist_ok=True)
    holdings.write(table, folder / TABLE)
    # A sample whose label is a mask has no class to be counted by.
    counted = prepared.mask is None
    classes = list(prepared.classes) if counted else ["samples"]
    labels = prepared.y if counted else np.zeros_like(prepared.y)
    statistics = holdings.statistics(table, labels, len(classes))
    write_table(folder / "statistics.parquet", statistics)
    _measure_domains(table, prepared, folder)
    about = {
        "dataset": prepared.name,
        "scheme": entry.name,
        "params": values,
        "notes": table.attrs.get("notes", []),
        "unseen": holdings.unseen(table).tolist(),
        "classes": classes,
        "content": holdings.content_hash(table),
    }
    if MODALITY in table:
        about["modality"] = table.groupby("client")[MODALITY].first().tolist()
    if named := domains_of(table, prepared):
        about["domains"] = named
    write_sealed(folder / ABOUT, about, [TABLE])


def domains_of(table: pd.DataFrame, prepared: Prepared) -> list[str]:
    """By client, the domain of most of its training samples; empty if data have no domains."""
    if prepared.domain is None or not prepared.domains:
        return []
    return [prepared.domains[kind] for kind in holdings.domains(table, prepared.domain)]


def deal(
    scheme: Callable[..., pd.DataFrame], values: Mapping[str, Any], prepared: Prepared, name: str
) -> pd.DataFrame:
    """The partition table ``sample, client, split`` that a scheme makes.

    The scheme gets the labels, ``values``, and those of the data set's own groups, domains and
    published split for which it has arguments.

    Args:
        name: Of the partition, in errors.

    Raises:
        DataError: For a table that breaks the promises of one, see `fl.data.holdings.validate`.
    """
    given = {"groups": prepared.client, "domains": prepared.domain, "published": prepared.split}
    wanted = inspect.signature(scheme).parameters
    groups = {key: given[key] for key in given if key in wanted}
    table = scheme(prepared.y, **groups, **values)
    holdings.validate(table, prepared.y, source=values.get("path", f"partition {name}"))
    return table


def _measure_domains(table: pd.DataFrame, prepared: Prepared, folder: Path) -> None:
    """``domains.parquet``, where the data set has domains and inputs between which there is a
    distance: whole numbers other than those of images are tokens.
    """
    tokens = prepared.x.dtype.kind in "iu" and prepared.x.dtype != np.uint8
    if prepared.domain is None or not prepared.domains or tokens:
        return
    trained = table.loc[(table["split"] == "train").to_numpy(bool), "sample"].to_numpy()
    distances = domain_distances(prepared.x, prepared.domain, trained)
    for side in ("domain", "other"):
        distances[side] = np.array(prepared.domains)[distances[side]]
    write_table(folder / "domains.parquet", distances)
