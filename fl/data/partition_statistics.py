"""Statistics of new partitions for reports, and notes on what is unusual about them.

They decide no number of a run, but a partition's record holds the notes. So they lie in this room,
whose code names data sets and partitions: after an edit here data are made anew until it is
certified.

The distance of domains is a two-sample statistic: A. Gretton, K. M. Borgwardt, M. J. Rasch, B.
Schoelkopf and A. Smola. A Kernel Two-Sample Test. JMLR 2012 (equation 3, and section 8 for the
bandwidth).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fl.base.errors import DataError
from fl.base.files import write_table
from fl.base.rng import generator
from fl.base.schema import HOLDINGS
from fl.data.partition_table import training_samples
from fl.data.prepared import SPLIT_NAMES, Prepared, list_classes
from fl.data.scheme import PUBLISHED_SPLIT

log = logging.getLogger(__name__)


def describe_partition(
    table: pd.DataFrame, prepared: Prepared, values: Mapping[str, Any], folder: Path
) -> list[str]:
    """Write ``statistics.parquet`` and ``domains.parquet`` of a new partition; return its notes.

    Args:
        table: The partition table.
        prepared: The data set.
        values: Keys of the scheme.
        folder: The partition's folder.
    """
    # Samples with masks or targets have no classes, so all are counted as one.
    classes = len(prepared.classes) if prepared.has_classes else 1
    labels = prepared.y if prepared.has_classes else np.zeros_like(prepared.y)
    write_table(folder / "statistics.parquet", statistics(table, labels, classes))
    _write_domain_distances(table, prepared, folder)
    repetitions = [] if prepared.split is None else repetition_notes(table, prepared)
    return [*_split_notes(values, prepared), *repetitions, *_class_notes(table, prepared)]


def statistics(table: pd.DataFrame, labels: np.ndarray, classes: int) -> pd.DataFrame:
    """Return statistics of the labels, one row per client and split with samples.

    A row has n samples, n_c of them of class c. The whole table (all clients and splits) has N
    samples, N_c of them of class c.

    - ``n``: n
    - ``label_entropy``: -sum_c (n_c/n) ln(n_c/n), in nats
    - ``majority_share``: max_c n_c/n, the accuracy of the most frequent label as the only answer
    - ``emd``: sum_c |n_c/n - N_c/N|, 0 to 2 (Zhao et al. 2018, arXiv:1806.00582)
    - ``class_0`` ..: n_c

    Args:
        table: The partition table.
        labels: Whole numbers in 0..classes-1, ``[samples]``.
        classes: Number of classes.

    Returns:
        The rows, sorted by client and split (train, val, test, server).

    Raises:
        DataError: If a label is out of range.
    """
    label = np.asarray(labels)[table["sample"].to_numpy()]
    for row in np.flatnonzero((label < 0) | (label >= classes))[:1]:
        problem = f"sample {table['sample'].iloc[row]} has label {label[row]}"
        raise DataError(f"statistics: {problem}", f"0 to {classes - 1}")
    split = pd.Index(HOLDINGS).get_indexer(pd.Index(table["split"]))
    group_of_row = table["client"].to_numpy().astype(np.int64) * len(HOLDINGS) + split
    groups, group_index = np.unique(group_of_row, return_inverse=True)
    counts = np.bincount(group_index * classes + label, minlength=len(groups) * classes)
    counts = counts.reshape(len(groups), classes)

    n = counts.sum(axis=1)
    shares = counts / n[:, None]
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    measures = pd.DataFrame(
        {
            "client": (groups // len(HOLDINGS)).astype(np.int32),
            "split": pd.array(
                np.array(HOLDINGS, dtype=object)[groups % len(HOLDINGS)], dtype="string"
            ),
            "n": n.astype(np.int64),
            "label_entropy": np.abs((shares * logs).sum(axis=1)),
            "majority_share": shares.max(axis=1),
            "emd": np.abs(shares - counts.sum(axis=0) / n.sum()).sum(axis=1),
        }
    )
    per_class = pd.DataFrame(counts, columns=[f"class_{c}" for c in range(classes)])
    return pd.concat([measures, per_class], axis=1)


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
    return np.asarray(np.maximum(squares, 0.0))


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


def _class_notes(table: pd.DataFrame, prepared: Prepared) -> list[str]:
    """Return a note on classes that the user's own data have, but no training sample."""
    if not prepared.has_classes or "path" not in prepared.params:
        return []
    trained = np.isin(prepared.y, np.unique(prepared.y[training_samples(table)]))
    absent = [prepared.classes[label] for label in np.unique(prepared.y[~trained])]
    text = "class has" if len(absent) == 1 else "classes have"
    note = f"{len(absent):,} {text} no training sample: {list_classes(absent)}"
    return [note] if absent else []


PIECE_BYTES = 1 << 22
"""Bytes of samples that are compared at once."""
LARGE_BYTES = 1 << 26
"""Bytes of samples that are not read only to look for copies."""
TRIED_SAMPLES = 3
"""Number of test samples that are looked for among large data."""


def repetition_notes(table: pd.DataFrame, prepared: Prepared) -> list[str]:
    """Return a note if half of the test samples are copies of training or validation samples.

    A copy has the same input ``x`` and the same label.

    Args:
        table: The partition.
        prepared: The data set.
    """
    is_test, samples = (table["split"] == "test").to_numpy(), table["sample"].to_numpy()
    test, further = samples[is_test], samples[~is_test]
    count = _count_copies(prepared, test, further) if len(test) else 0
    if 2 * count < max(1, len(test)):
        return []
    number = "each" if count == len(test) else f"{count}"
    note = f"{number} of the {len(test)} test samples is a copy of a training or validation sample"
    note = note if count == len(test) else note.replace(" is a copy", " are copies")
    log.warning("%s: %s", prepared.name, note)
    return [note]


def _count_copies(prepared: Prepared, rows: np.ndarray, further: np.ndarray) -> int:
    """Return how many of some samples have a copy among further samples.

    It is 0 for large data where the first ones have none, as all samples would have to be read.
    """
    first = rows[:TRIED_SAMPLES]
    is_large = prepared.x[first[0]].nbytes * (len(rows) + len(further)) > LARGE_BYTES
    if is_large and not any(_has_copy(prepared, row, further) for row in first):
        return 0
    copies = set(_sample_hashes(prepared, further))
    return sum(sample in copies for sample in _sample_hashes(prepared, rows))


def _has_copy(prepared: Prepared, row: int, further: np.ndarray) -> bool:
    """Whether a sample has a copy among further samples."""
    sample = prepared.x[row]
    candidates = further[prepared.y[further] == prepared.y[row]]
    step = max(1, PIECE_BYTES // sample.nbytes)
    pieces = (candidates[n : n + step] for n in range(0, len(candidates), step))
    return any(_equal_rows(prepared.x[piece], sample).any() for piece in pieces)


def _equal_rows(x: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Return whether each input ``[samples, ...]`` has the bytes of another one ``[...]``."""
    samples = np.ascontiguousarray(x).reshape(len(x), -1).view(np.uint8)
    return np.asarray((samples == np.ascontiguousarray(row).reshape(-1).view(np.uint8)).all(axis=1))


def _sample_hashes(prepared: Prepared, rows: np.ndarray) -> Iterator[tuple[int, bytes]]:
    for row in rows:
        digest = hashlib.blake2b(prepared.x[row].tobytes(), digest_size=16).digest()
        yield int(prepared.y[row]), digest
