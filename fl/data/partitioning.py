"""Partitions that runs use, each computed once and stored under its id."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fl.base import identity, registry
from fl.base.errors import DataError, Location
from fl.base.files import find_damage, read_sealed, write_sealed
from fl.base.folders import partition_folder
from fl.base.specs import ComponentSpec
from fl.data import groups, partition_table
from fl.data.partition_statistics import describe_partition
from fl.data.partition_table import MODALITY
from fl.data.preparation import (
    DEFAULT_POLICY,
    SourcePolicy,
    dataset_id,
    prepare_dataset,
    prepared_folder,
    spec_without_defaults,
)
from fl.data.prepared import DESCRIPTION, Prepared
from fl.data.scheme import PUBLISHED_SPLIT
from fl.data.splitting import SmallClient

TABLE_FILE, RECORD_FILE = "partition.parquet", "partition.json"


def partition_id(
    spec: ComponentSpec, dataset: str, code_of: identity.CodeOf = identity.root_code
) -> str:
    """Return the id of a partition: ``dirichlet-<hash of spec, code, data set, user's table>``.

    Args:
        spec: The spec of the partition scheme.
        dataset: Id of the data set.
        code_of: Name of the code of a root.
    """
    component = registry.find("partition scheme", spec["name"], Location("the spec"))
    table_hash = (
        partition_table.content_hash(partition_table.read_users_table(spec))
        if "path" in spec
        else ""
    )
    scheme = identity.entry("partition scheme", component.name)
    code = [code_of(scheme), code_of(identity.DATA)]
    digest = identity.digest([spec_without_defaults(component, spec), code, dataset, table_hash])
    return f"{component.name}-{digest}"


def make_partition(
    spec: ComponentSpec,
    dataset: ComponentSpec,
    root: Path,
    results: Path,
    policy: SourcePolicy = DEFAULT_POLICY,
) -> pd.DataFrame:
    """Return the table in ``<results>/partitions/<id>``; make it if it does not exist.

    The folder has ``partition.parquet``, the tables of `fl.data.partition_statistics`, and
    ``partition.json`` with the scheme, its notes and checksums.

    Raises:
        DataError: If a file was changed after it was written.
    """
    folder = partition_folder(results, partition_id(spec, dataset_id(dataset)))
    record_path = folder / RECORD_FILE
    # Before 0.2.0 no seal was written.
    if not record_path.exists() or b'"seal"' not in record_path.read_bytes():
        prepared = prepare_dataset(dataset, root, policy)
        names = _natural_client_names(spec, dataset)
        try:
            _make_new(spec, prepared, folder, names)
        except SmallClient as error:
            if error.client >= len(names):
                raise
            raise SmallClient(*error.facts, error.remark, names[error.client]) from None
    _verified_hash(folder)
    return partition_table.read(folder / TABLE_FILE)


def client_names(spec: ComponentSpec, dataset: ComponentSpec, results: Path) -> list[str]:
    """Return the names of a made partition's clients by number; empty if they have none."""
    record = read_sealed(
        partition_folder(results, partition_id(spec, dataset_id(dataset))) / RECORD_FILE
    )
    return [*map(str, record.get("client_names", ()))]


def _natural_client_names(spec: ComponentSpec, dataset: ComponentSpec) -> list[str]:
    """Return the names of the data set's clients by number, if they are a partition's clients.

    Only natural clients have names: other schemes number clients of their own.
    """
    if spec["name"] != "natural":
        return []
    try:
        return [*getattr(registry.component_of("data set", dataset)[1], "client_names", ())]
    except (DataError, OSError):  # The user's own file was there when the data were prepared.
        return []


def _verified_hash(folder: Path) -> str:
    """Return the content hash of a partition; raise a `DataError` if a file was changed."""
    advice = f"delete the folder {folder}; the partition is then made again"
    try:
        record = read_sealed(folder / RECORD_FILE)
    except DataError as error:
        raise DataError(str(error), advice=advice) from None
    if problem := find_damage(folder / TABLE_FILE, record["files"][TABLE_FILE]):
        raise DataError(problem, advice=advice)
    return str(record["content"])


def data_hashes(code: Mapping[str, str], root: Path, results: Path) -> dict[str, str]:
    """Return the present hashes of a run's data set and partition.

    Args:
        code: ``code`` of the run's record, with the ids of both.
        root: The folder of data.
        results: The folder of results.

    Returns:
        The hashes by ``dataset`` and ``partition``; a missing one is left out.

    Raises:
        DataError: If a file was changed after it was written.
    """
    hashes = {}
    prepared = prepared_folder(root, code["dataset"])
    partition = partition_folder(results, code["partition"])
    if (prepared / DESCRIPTION).exists():
        hashes["dataset"] = Prepared.open(prepared).verify()
    if (partition / RECORD_FILE).exists():
        hashes["partition"] = _verified_hash(partition)
    return hashes


def find_data_change(record: Mapping[str, Any], root: Path, results: Path) -> str | None:
    """Return how the data of a finished run have changed since its training, or None.

    Args:
        record: The content of the run's ``run.json``.
        root: The folder of data.
        results: The folder of results.
    """
    try:
        hashes = data_hashes(record["code"], root, results)
    except DataError as error:
        return str(error)
    for name, hash_now in hashes.items():
        if record.get("data", {}).get(name, hash_now) != hash_now:
            return f"{record['code'][name]}: the {name} has changed since the run was trained on it"
    return None


def _make_new(
    spec: ComponentSpec, prepared: Prepared, folder: Path, client_names: Sequence[str]
) -> None:
    component = registry.find("partition scheme", spec["name"], Location("the spec"))
    values = {key: value for key, value in spec.items() if key != "name"}
    table = apply_scheme(component.target, values, prepared, component.name)
    folder.mkdir(parents=True, exist_ok=True)
    notes = [
        *prepared.notes,
        *table.attrs.get("notes", []),
        *describe_partition(table, prepared, values, folder),
    ]
    table.attrs["notes"] = notes
    partition_table.write(table, folder / TABLE_FILE)
    record = {
        "dataset": prepared.name,
        "scheme": component.name,
        "params": values,
        "notes": notes,
        "unseen": partition_table.unseen_clients(table).tolist(),
        "classes": list(prepared.classes) if prepared.has_classes else ["samples"],
        "content": partition_table.content_hash(table),
    }
    if client_names and prepared.client is not None:
        # Natural clients without a sample in the table have no number in it.
        first = table.groupby("client")["sample"].first()
        record["client_names"] = [client_names[n] for n in prepared.client[first]]
    if MODALITY in table:
        record["modality"] = table.groupby("client")[MODALITY].first().tolist()
    if domains := client_domains(table, prepared):
        record["domains"] = domains
    write_sealed(folder / RECORD_FILE, record, [TABLE_FILE])


def client_domains(table: pd.DataFrame, prepared: Prepared) -> list[str]:
    """Return each client's domain, that of most training samples; empty without domains."""
    if prepared.domain is None or not prepared.domains:
        return []
    return [
        prepared.domains[domain]
        for domain in partition_table.majority_domains(table, prepared.domain)
    ]


def apply_scheme(
    scheme: Callable[..., pd.DataFrame], values: Mapping[str, Any], prepared: Prepared, name: str
) -> pd.DataFrame:
    """Return the partition table of a scheme.

    The scheme gets the labels and ``values``, and the data set's clients (``groups``), domains,
    published split, blocks of clients (``block``) and groups of samples (``group``) if it has
    arguments of these names.

    Args:
        scheme: The scheme's function.
        values: Its keys with their values.
        prepared: The data set.
        name: Name of the partition for errors.

    Raises:
        DataError: For a table that `fl.data.partition_table.validate` rejects, for groups of
            samples that cannot be kept whole, and for training samples of one target.
    """
    arrays = {
        "groups": prepared.client,
        "domains": prepared.domain,
        "published": prepared.split,
        "block": prepared.block,
        "group": prepared.group,
    }
    arguments, source = (
        inspect.signature(scheme).parameters,
        values.get("path", f"partition {name}"),
    )
    arrays = {key: arrays[key] for key in arrays if key in arguments}
    if prepared.group is not None:
        groups.check_arrays(prepared, arrays, PUBLISHED_SPLIT in values.values(), source)
    table = scheme(prepared.y, **arrays, **values)
    partition_table.validate(table, prepared.y, source=source)
    _check_training_targets(table, prepared, source)
    return table if prepared.group is None else groups.name_groups(table, prepared, source)


def _check_training_targets(table: pd.DataFrame, prepared: Prepared, source: str) -> None:
    """Raise a `DataError` if all training samples have one target, so that none is learnt."""
    if prepared.target is None:
        return
    targets = prepared.target[partition_table.training_samples(table)]
    if (targets == targets[0]).all():
        problem = f"{source}: the target of each of the {len(targets):,} training samples is "
        advice = "correct the split train, or choose another partition"
        raise DataError(f"{problem}{targets[0]:g}", "different numbers", advice)
