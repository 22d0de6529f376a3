"""Partitions that runs use, each computed once and stored under its id with statistics.

The distance of domains is a two-sample statistic: A. Gretton, K. M. Borgwardt, M. J. Rasch, B.
Schoelkopf and A. Smola. A Kernel Two-Sample Test. JMLR 2012 (equation 3, and section 8 for the
bandwidth).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fl.base import identity, registry
from fl.base.errors import DataError, Location
from fl.base.files import find_damage, read_sealed, write_sealed, write_table
from fl.base.rng import generator
from fl.base.specs import ComponentSpec
from fl.data import groups, partition_table
from fl.data.inputs import MODALITY
from fl.data.preparation import (
    DEFAULT_POLICY,
    SourcePolicy,
    dataset_id,
    prepare_dataset,
    spec_without_defaults,
)
from fl.data.prepared import DESCRIPTION, SPLIT_NAMES, Prepared
from fl.data.repeated_samples import repetition_notes
from fl.data.scheme import PUBLISHED_SPLIT

log = logging.getLogger(__name__)

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

    The folder has ``partition.parquet``, ``statistics.parquet``, the distances of domains in
    ``domains.parquet`` if there are domains, and ``partition.json`` with the scheme, its notes and
    checksums.

    Raises:
        DataError: If a file was changed after it was written.
    """
    folder = results / "partitions" / partition_id(spec, dataset_id(dataset))
    record_path = folder / RECORD_FILE
    # Before 0.2.0 no seal was written.
    if not record_path.exists() or b'"seal"' not in record_path.read_bytes():
        _make_new(spec, prepare_dataset(dataset, root, policy), folder)
    _verified_hash(folder)
    return partition_table.read(folder / TABLE_FILE)


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
    prepared, partition = root / "prepared" / code["dataset"], results / "partitions"
    if (prepared / DESCRIPTION).exists():
        hashes["dataset"] = Prepared.open(prepared).verify()
    if (partition / code["partition"] / RECORD_FILE).exists():
        hashes["partition"] = _verified_hash(partition / code["partition"])
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


def _make_new(spec: ComponentSpec, prepared: Prepared, folder: Path) -> None:
    component = registry.find("partition scheme", spec["name"], Location("the spec"))
    values = {key: value for key, value in spec.items() if key != "name"}
    table = apply_scheme(component.target, values, prepared, component.name)
    notes = [*prepared.notes, *table.attrs.get("notes", []), *_split_notes(values, prepared)]
    notes += [] if prepared.split is None else repetition_notes(table, prepared)
    table.attrs["notes"] = notes
    folder.mkdir(parents=True, exist_ok=True)
    partition_table.write(table, folder / TABLE_FILE)
    # Samples with masks or targets have no classes, so all are counted as one.
    classes = list(prepared.classes) if prepared.has_classes else ["samples"]
    labels = prepared.y if prepared.has_classes else np.zeros_like(prepared.y)
    statistics = partition_table.statistics(table, labels, len(classes))
    write_table(folder / "statistics.parquet", statistics)
    _write_domain_distances(table, prepared, folder)
    record = {
        "dataset": prepared.name,
        "scheme": component.name,
        "params": values,
        "notes": table.attrs.get("notes", []),
        "unseen": partition_table.unseen_clients(table).tolist(),
        "classes": classes,
        "content": partition_table.content_hash(table),
    }
    if MODALITY in table:
        record["modality"] = table.groupby("client")[MODALITY].first().tolist()
    if domains := client_domains(table, prepared):
        record["domains"] = domains
    write_sealed(folder / RECORD_FILE, record, [TABLE_FILE])


def _split_notes(values: Mapping[str, Any], prepared: Prepared) -> list[str]:
    """Return a note if a test split that is part of the user's own data is dealt like the rest."""
    if prepared.split is None or "path" not in prepared.params:
        return []
    count = int((prepared.split == SPLIT_NAMES.index("test")).sum())
    if not count or isinstance(values.get("test", PUBLISHED_SPLIT), str):
        return []
    note = f"the {count:,} samples of the data's test split are dealt like all others, as `test` "
    note += f"is {values['test']:g}, not {PUBLISHED_SPLIT}"
    log.warning("%s: %s", prepared.name, note)
    return [note]


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
    published split and groups of samples (``group``) if it has arguments of these names.

    Args:
        scheme: The scheme's function.
        values: Its keys with their values.
        prepared: The data set.
        name: Name of the partition for errors.

    Raises:
        DataError: For a table that `fl.data.partition_table.validate` rejects, and for groups of
            samples that cannot be kept whole.
    """
    arrays = {
        "groups": prepared.client,
        "domains": prepared.domain,
        "published": prepared.split,
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
    return table if prepared.group is None else groups.name_groups(table, prepared, source)


def _write_domain_distances(table: pd.DataFrame, prepared: Prepared, folder: Path) -> None:
    """Write ``domains.parquet`` if the data set has domains and its inputs are not tokens."""
    # Whole numbers other than the bytes of images are tokens, which have no distance.
    tokens = prepared.x.dtype.kind in "iu" and prepared.x.dtype != np.uint8
    if prepared.domain is None or not prepared.domains or tokens:
        return
    trained = table.loc[(table["split"] == "train").to_numpy(bool), "sample"].to_numpy()
    distances = domain_distances(prepared.x, prepared.domain, trained)
    for side in ("domain", "other"):
        distances[side] = np.array(prepared.domains)[distances[side]]
    write_table(folder / "domains.parquet", distances)


DISTANCE_SAMPLES = 200
"""Largest number of samples of a domain from which distances are computed."""
DISTANCE_DIMENSIONS = 64
"""Dimension of the random projection of inputs."""
BANDWIDTH_SAMPLES = 1000
"""Largest number of samples, of all domains together, for the bandwidth."""


def domain_distances(x: np.ndarray, domains: np.ndarray, chosen: np.ndarray) -> pd.DataFrame:
    """Return the unbiased squared MMD of each pair of domains.

    MMD^2(a, b) = mean_{i != j} k(a_i, a_j) + mean_{i != j} k(b_i, b_j) - 2 mean_{i, j} k(a_i, b_j)
    with k(u, v) = exp(-|u - v|^2 / (2 s^2)), and s the median distance between two samples of any
    domain. Its mean is 0 if two domains do not differ, so it may be negative; it is 2 at most. Up
    to 200 fixed samples of a domain are used. Their stored inputs are projected to 64 dimensions
    by a fixed Gaussian matrix.

    Args:
        x: Inputs ``[samples, ...]``.
        domains: Domain of each sample, whole numbers ``[samples]``.
        chosen: Indices of the samples to use. A domain with fewer than two of them is left out.

    Returns:
        A row for each pair of domains: ``domain``, ``other`` (the larger number) and ``mmd2``.
    """
    numbers, points = [], []
    features = int(np.prod(x.shape[1:]))
    matrix = generator(0, "projection").standard_normal((features, DISTANCE_DIMENSIONS), np.float32)
    for name in np.unique(domains[chosen]):
        members = chosen[domains[chosen] == name]
        drawn = generator(0, "distance", int(name)).permutation(members)[:DISTANCE_SAMPLES]
        if len(drawn) > 1:
            numbers.append(int(name))
            inputs = np.asarray(x[np.sort(drawn)], np.float32).reshape(len(drawn), -1)
            points.append((inputs @ (matrix / np.sqrt(features))).astype(np.float64))
    scale = _bandwidth(points)
    within_means = [_mean_kernel(a, a, scale) for a in points]
    rows = [
        (
            numbers[i],
            numbers[j],
            within_means[i] + within_means[j] - 2 * _mean_kernel(points[i], points[j], scale),
        )
        for i in range(len(points))
        for j in range(i + 1, len(points))
    ]
    table = pd.DataFrame(rows, columns=["domain", "other", "mmd2"])
    return table.astype({"domain": "int32", "other": "int32", "mmd2": "float64"})


def _bandwidth(points: list[np.ndarray]) -> float:
    """Return 2 s^2, computed from equally many samples of each domain."""
    if not points:
        return 1.0
    pooled = np.concatenate([a[: max(2, BANDWIDTH_SAMPLES // len(points))] for a in points])
    squares = _squared_distances(pooled, pooled)[np.triu_indices(len(pooled), 1)]
    return 2 * float(np.median(squares)) or 1.0


def _mean_kernel(a: np.ndarray, b: np.ndarray, scale: float) -> float:
    """Return the mean of k over pairs, without pairs of a sample with itself if ``a`` is ``b``."""
    kernel = np.exp(-_squared_distances(a, b) / scale)
    if a is b:
        return float((kernel.sum() - len(a)) / (len(a) * (len(a) - 1)))
    return float(kernel.mean())


def _squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return squared distances [len(a), len(b)]; exactly 0 between a sample and itself."""
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T
    if a is b:
        np.fill_diagonal(squares, 0.0)
    return np.maximum(squares, 0.0)
