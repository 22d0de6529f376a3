"""Making what runs read, once: prepared data sets and partitions, each under its identity.

How far apart the inputs of domains are: a two-sample distance of every pair.

A. Gretton, K. M. Borgwardt, M. J. Rasch, B. Schoelkopf and A. Smola. A Kernel Two-Sample Test. JMLR
2012 (equation 3, and section 8 for the bandwidth).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fl.base import identity, registry
from fl.base.errors import DataError, Location
from fl.base.files import find_damage, read_sealed, write_sealed, write_table
from fl.base.rng import generator
from fl.data import partition_table
from fl.data.dataset import (
    Spec,
)
from fl.data.inputs import MODALITY
from fl.data.preparation import (
    DEFAULT_POLICY,
    SourcePolicy,
    dataset_id,
    prepare_dataset,
    spec_without_defaults,
)
from fl.data.prepared import DESCRIPTION, Prepared

TABLE_FILE, RECORD_FILE = "partition.parquet", "partition.json"


def partition_id(spec: Spec, dataset: str) -> str:
    """``dirichlet-<hash>``: the spec, the scheme's code, the data set, a user's own table."""
    entry = registry.find("partition scheme", spec["name"], Location("the spec"))
    brought = (
        partition_table.content_hash(partition_table.read_users_table(spec))
        if "path" in spec
        else ""
    )
    scheme = identity.entry("partition scheme", entry.name)
    code = [identity.root_code(scheme), identity.root_code(identity.DATA)]
    digest = identity.digest([spec_without_defaults(entry, spec), code, dataset, brought])
    return f"{entry.name}-{digest}"


def make_partition(
    spec: Spec, dataset: Spec, root: Path, results: Path, supply: SourcePolicy = DEFAULT_POLICY
) -> pd.DataFrame:
    """The table in ``<results>/partitions/<id>``, made now if it is not there.

    Beside ``make_partition.parquet`` lie ``statistics.parquet``, where there are domains
    ``domains.parquet`` with the distances between them (`fl.data.partitioning`), and
    ``make_partition.json``, which says how it was made and what had to be repaired, under a seal.

    Raises:
        DataError: If the table is another one than was made.
    """
    folder = results / "partitions" / partition_id(spec, dataset_id(dataset))
    about = folder / RECORD_FILE
    # Before 0.2.0 no seal was written.
    if not about.exists() or b'"seal"' not in about.read_bytes():
        _make_new(spec, prepare_dataset(dataset, root, supply), folder)
    _verified_hash(folder)
    return partition_table.read(folder / TABLE_FILE)


def _verified_hash(folder: Path) -> str:
    """The hash of what a partition holds; `DataError` where a file is not as it was written."""
    remedy = f"delete the folder {folder}, and it is made again"
    try:
        record = read_sealed(folder / RECORD_FILE)
    except DataError as error:
        raise DataError(f"{error}; {remedy}") from None
    if problem := find_damage(folder / TABLE_FILE, record["files"][TABLE_FILE]):
        raise DataError(f"{problem}; {remedy}")
    return str(record["content"])


def data_hashes(code: Mapping[str, str], root: Path, results: Path) -> dict[str, str]:
    """The hashes of the data set and of the partition that a run is trained on, as they are now.

    Args:
        code: The run's, which has the ids of both.

    Returns:
        By ``dataset`` and ``make_partition``; without what is not there.

    Raises:
        DataError: For a file that is not as it was written.
    """
    hashes = {}
    prepared, partition = root / "prepared" / code["dataset"], results / "partitions"
    if (prepared / DESCRIPTION).exists():
        hashes["dataset"] = Prepared.open(prepared).verify()
    if (partition / code["partition"] / RECORD_FILE).exists():
        hashes["partition"] = _verified_hash(partition / code["partition"])
    return hashes


def find_data_change(record: Mapping[str, Any], root: Path, results: Path) -> str | None:
    """What is wrong with the data on which a finished run was trained, where they are there.

    Args:
        record: The run's ``run.json``.
    """
    try:
        now = data_hashes(record["code"], root, results)
    except DataError as error:
        return str(error)
    for kind, content in now.items():
        if record.get("data", {}).get(kind, content) != content:
            return f"{record['code'][kind]}: is another {kind} than the run was trained on"
    return None


def _make_new(spec: Spec, prepared: Prepared, folder: Path) -> None:
    entry = registry.find("partition scheme", spec["name"], Location("the spec"))
    values = {key: value for key, value in spec.items() if key != "name"}
    table = apply_scheme(entry.target, values, prepared, entry.name)
    folder.mkdir(parents=True, exist_ok=True)
    partition_table.write(table, folder / TABLE_FILE)
    # A sample whose label is a mask has no class to be counted by.
    counted = prepared.mask is None
    classes = list(prepared.classes) if counted else ["samples"]
    labels = prepared.y if counted else np.zeros_like(prepared.y)
    statistics = partition_table.statistics(table, labels, len(classes))
    write_table(folder / "statistics.parquet", statistics)
    _write_domain_distances(table, prepared, folder)
    about = {
        "dataset": prepared.name,
        "scheme": entry.name,
        "params": values,
        "notes": table.attrs.get("notes", []),
        "unseen": partition_table.unseen_clients(table).tolist(),
        "classes": classes,
        "content": partition_table.content_hash(table),
    }
    if MODALITY in table:
        about["modality"] = table.groupby("client")[MODALITY].first().tolist()
    if named := client_domains(table, prepared):
        about["domains"] = named
    write_sealed(folder / RECORD_FILE, about, [TABLE_FILE])


def client_domains(table: pd.DataFrame, prepared: Prepared) -> list[str]:
    """By client, the domain of most of its training samples; empty if data have no domains."""
    if prepared.domain is None or not prepared.domains:
        return []
    return [
        prepared.domains[kind] for kind in partition_table.majority_domains(table, prepared.domain)
    ]


def apply_scheme(
    scheme: Callable[..., pd.DataFrame], values: Mapping[str, Any], prepared: Prepared, name: str
) -> pd.DataFrame:
    """The partition table ``sample, client, split`` that a scheme makes.

    The scheme gets the labels, ``values``, and those of the data set's own groups, domains and
    published split for which it has arguments.

    Args:
        name: Of the partition, in errors.

    Raises:
        DataError: For a table that `fl.data.partition_table.validate` rejects.
    """
    given = {"groups": prepared.client, "domains": prepared.domain, "published": prepared.split}
    wanted = inspect.signature(scheme).parameters
    groups = {key: given[key] for key in given if key in wanted}
    table = scheme(prepared.y, **groups, **values)
    partition_table.validate(table, prepared.y, source=values.get("path", f"partition {name}"))
    return table


def _write_domain_distances(table: pd.DataFrame, prepared: Prepared, folder: Path) -> None:
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


DISTANCE_SAMPLES = 200
"""Of a domain, at most."""
DISTANCE_DIMENSIONS = 64
BANDWIDTH_SAMPLES = 1000
"""Samples of all domains together that the bandwidth is taken from, at most."""


def domain_distances(x: np.ndarray, domains: np.ndarray, chosen: np.ndarray) -> pd.DataFrame:
    """The unbiased squared MMD of every two domains.

    MMD^2(a, b) = mean_{i != j} k(a_i, a_j) + mean_{i != j} k(b_i, b_j) - 2 mean_{i, j} k(a_i, b_j)
    with k(u, v) = exp(-|u - v|^2 / (2 s^2)), and s the median distance between two samples of any
    domain. Its mean is 0 where two domains do not differ, so that it may be negative; it is 2 at
    most. At most 200 samples of a domain are taken, always the same ones. Their inputs, as they are
    stored, are projected to 64 dimensions by a fixed Gaussian matrix.

    Args:
        x: Inputs ``[samples, ...]``.
        domains: The domain of each sample, whole numbers ``[samples]``.
        chosen: The samples that count. A domain with fewer than two of them is left out.

    Returns:
        A row for each two domains: ``domain``, ``other`` (the larger number) and ``mmd2``.
    """
    names, points = [], []
    features = int(np.prod(x.shape[1:]))
    matrix = generator(0, "projection").standard_normal((features, DISTANCE_DIMENSIONS), np.float32)
    for name in np.unique(domains[chosen]):
        mine = chosen[domains[chosen] == name]
        picked = generator(0, "distance", int(name)).permutation(mine)[:DISTANCE_SAMPLES]
        if len(picked) > 1:
            names.append(int(name))
            inputs = np.asarray(x[np.sort(picked)], np.float32).reshape(len(picked), -1)
            points.append((inputs @ (matrix / np.sqrt(features))).astype(np.float64))
    scale = _bandwidth(points)
    within = [_mean_kernel(a, a, scale) for a in points]
    rows = [
        (names[i], names[j], within[i] + within[j] - 2 * _mean_kernel(points[i], points[j], scale))
        for i in range(len(points))
        for j in range(i + 1, len(points))
    ]
    made = pd.DataFrame(rows, columns=["domain", "other", "mmd2"])
    return made.astype({"domain": "int32", "other": "int32", "mmd2": "float64"})


def _bandwidth(points: list[np.ndarray]) -> float:
    """2 s^2, from as many samples of each domain."""
    if not points:
        return 1.0
    some = np.concatenate([a[: max(2, BANDWIDTH_SAMPLES // len(points))] for a in points])
    squares = _squared_distances(some, some)[np.triu_indices(len(some), 1)]
    return 2 * float(np.median(squares)) or 1.0


def _mean_kernel(a: np.ndarray, b: np.ndarray, scale: float) -> float:
    """The mean of k over pairs, a sample's pair with itself left out where ``a`` is ``b``."""
    kernel = np.exp(-_squared_distances(a, b) / scale)
    if a is b:
        return float((kernel.sum() - len(a)) / (len(a) * (len(a) - 1)))
    return float(kernel.mean())


def _squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Squared distances ``[len(a), len(b)]``; exactly 0 between a sample and itself."""
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T
    if a is b:
        np.fill_diagonal(squares, 0.0)
    return np.maximum(squares, 0.0)
