"""Partition tables: the client and the split of each sample.

A table is a pandas DataFrame with one row per sample that is used: ``sample`` (int64, an index into
the data set), ``client`` (int32, 0..K-1 without gaps) and ``split`` (text: train, val, test
or server, see `fl.base.schema.SERVER`). A column ``unseen`` (bool) may mark clients that are held
out of training; further columns, such as ``domain``, are allowed. ``attrs["notes"]`` lists
adjustments that a scheme made to its definition. This module checks, stores and describes tables of
any origin; `fl.data.partition` has the schemes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fl.base import parquet
from fl.base.errors import DataError
from fl.base.files import atomic_writer, disk_errors, parse_json
from fl.base.folders import path_of
from fl.base.schema import HOLDINGS, PARTITION_COLUMNS, UNSEEN
from fl.data.inputs import MODALITY

INTEGERS = {"sample": np.int64, "client": np.int32}
NOTES = b"fedloom.notes"


def validate(table: pd.DataFrame, labels: np.ndarray, *, source: str) -> None:
    """Raise a `DataError` unless ``table`` is a partition of the data set.

    Checks follow this order: columns, types, samples out of range or repeated, unknown splits, gaps
    in the client numbers, clients without train or test samples, clients that are unseen in some
    rows only, and whether any client is trained on.

    Args:
        table: The table.
        labels: Labels of the data set ``[samples]``.
        source: The file or the scheme, for errors.

    Raises:
        DataError: For the first problem.
    """
    check_columns(table, source)
    _check_samples(table["sample"].to_numpy(), len(labels), source)
    unknown = ~table["split"].isin(HOLDINGS).to_numpy()
    for row in np.flatnonzero(unknown)[:1]:
        sample, split = table["sample"].iloc[row], table["split"].iloc[row]
        _raise(source, f"sample {sample} has split {split!r}", ", ".join(HOLDINGS))
    _check_clients(table, source)
    _check_unseen(table, source)
    _check_modality(table, source)


def _raise(source: str, problem: str, allowed: str) -> None:
    raise DataError(f"{source}: {problem}", allowed)


def check_columns(table: pd.DataFrame, source: str) -> None:
    """Raise a `DataError` unless a table has rows and columns of the right types."""
    for name in PARTITION_COLUMNS:
        if name not in table:
            columns = ", ".join(map(str, table.columns)) or "none"
            allowed = "the columns " + ", ".join(PARTITION_COLUMNS)
            _raise(source, f"column {name!r} is missing (found: {columns})", allowed)
    for name, dtype in INTEGERS.items():
        if table[name].dtype != dtype:
            allowed = f"{np.dtype(dtype)}, whole numbers without empty cells"
            _raise(source, f"column {name!r} is {table[name].dtype}", allowed)
    if not pd.api.types.is_string_dtype(table["split"]):
        _raise(source, f"column 'split' is {table['split'].dtype}", "text: " + ", ".join(HOLDINGS))
    if table.empty:
        _raise(source, "the table has no rows", "at least one client")


def _check_samples(sample: np.ndarray, samples: int, source: str) -> None:
    outside = (sample < 0) | (sample >= samples)
    for row in np.flatnonzero(outside)[:1]:
        problem = f"sample {sample[row]} (row {row}) is not in the data set"
        _raise(source, problem, f"0 to {samples - 1}")
    for row in np.flatnonzero(pd.Series(sample).duplicated())[:1]:
        _raise(
            source, f"sample {sample[row]} (row {row}) occurs twice", "every sample at most once"
        )


def _check_clients(table: pd.DataFrame, source: str) -> None:
    clients = np.unique(table["client"].to_numpy())
    for index in np.flatnonzero(clients != np.arange(len(clients)))[:1]:
        problem = f"client {index} has no samples, but client {clients[-1]} has"
        if clients[index] < 0:
            problem = f"there is a client {clients[index]}"
        _raise(source, problem, "clients numbered from 0 without gaps")
    for split in ("train", "test"):
        clients_with_split = table.loc[(table["split"] == split).to_numpy(), "client"].to_numpy()
        for client in np.setdiff1d(clients, clients_with_split)[:1]:
            allowed = "at least one train and one test sample for every client"
            _raise(source, f"client {client} has no {split} samples", allowed)


def majority_domains(table: pd.DataFrame, domain: np.ndarray) -> np.ndarray:
    """Return, for each client, the domain of most of its training samples.

    Args:
        table: The partition table.
        domain: Domain of each sample of the data set, whole numbers ``[samples]``.
    """
    train = table[(table["split"] == "train").to_numpy(bool)]
    domains_of_train, clients = np.asarray(domain)[train["sample"]], train["client"].to_numpy()
    return np.array(
        [np.bincount(domains_of_train[clients == client]).argmax() for client in np.unique(clients)]
    )


def _check_unseen(table: pd.DataFrame, source: str) -> None:
    if UNSEEN not in table:
        return
    if table[UNSEEN].dtype != bool:
        _raise(source, f"column {UNSEEN!r} is {table[UNSEEN].dtype}", "bool: true or false")
    _check_constant_by_client(table, UNSEEN, source)
    if table[UNSEEN].all():
        _raise(source, f"every client is {UNSEEN}", "at least one that is not")


def _check_modality(table: pd.DataFrame, source: str) -> None:
    if MODALITY not in table:
        return
    if table[MODALITY].dtype.kind not in "iu":
        _raise(source, f"column {MODALITY!r} is {table[MODALITY].dtype}", "whole numbers from 0")
    _check_constant_by_client(table, MODALITY, source)
    modalities = np.unique(table[MODALITY].to_numpy())
    for index in np.flatnonzero(modalities != np.arange(len(modalities)))[:1]:
        _raise(source, f"modality {index} has no clients", "modalities from 0 without gaps")


def _check_constant_by_client(table: pd.DataFrame, column: str, source: str) -> None:
    values = table.groupby("client")[column].nunique()
    for client in values.index[values > 1][:1]:
        _raise(source, f"client {client} differs in {column!r} from row to row", "one for a client")


def unseen_clients(table: pd.DataFrame) -> np.ndarray:
    """Return the clients that are held out of training, in ascending order."""
    if UNSEEN not in table:
        return np.zeros(0, np.int32)
    return np.unique(table.loc[table[UNSEEN].to_numpy(), "client"].to_numpy())


def training_samples(table: pd.DataFrame) -> np.ndarray:
    """Return the training samples of the clients that are not held out, in ascending order."""
    rows = (table["split"] == "train").to_numpy(bool)
    if UNSEEN in table:
        rows = rows & ~table[UNSEEN].to_numpy(bool)
    return np.sort(table["sample"].to_numpy()[rows])


def read_users_table(spec: Mapping[str, Any]) -> pd.DataFrame:
    """Return the user's own table at the ``path`` of a scheme's spec, see `read`."""
    return read(path_of(spec["path"]))


def read(path: str | Path) -> pd.DataFrame:
    """Return the table in a Parquet file with its extra columns and notes.

    Whole numbers of another width are converted if no value changes; nothing else is checked (see
    `validate`).

    Raises:
        DataError: If the file cannot be read.
    """
    try:
        table, metadata = parquet.read(path)
        notes = parse_json(metadata.get(NOTES, b"[]"))
        if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
            raise ValueError("its notes are not a list of texts")
    except (OSError, ValueError, DataError) as error:
        reason = error if Path(path).exists() else "no such file"
        raise DataError(
            f"{path}: cannot be read as a partition table ({reason})",
            f"a complete Parquet file with the columns {', '.join(PARTITION_COLUMNS)}",
        ) from error
    for name, dtype in INTEGERS.items():
        if name in table and pd.api.types.is_integer_dtype(table[name]):
            cast = table[name].astype(dtype)
            table[name] = cast if (cast == table[name]).all() else table[name]
    if "split" in table and pd.api.types.is_string_dtype(table["split"]):
        table["split"] = table["split"].astype("string")
    table.attrs["notes"] = notes
    return table


def write(table: pd.DataFrame, path: str | Path) -> None:
    """Store a table as Parquet; equal tables give equal bytes, and no incomplete file remains.

    Notes are stored in the metadata of the schema.

    Raises:
        FedloomError: If the file cannot be written.
    """
    path = Path(path)
    arrow_table = pa.Table.from_pandas(table, preserve_index=False)
    for name, dtype in {"sample": pa.int64(), "client": pa.int32(), "split": pa.string()}.items():
        index = arrow_table.schema.get_field_index(name)
        arrow_table = arrow_table.set_column(index, name, arrow_table.column(name).cast(dtype))
    notes = json.dumps(table.attrs.get("notes", []))
    arrow_table = arrow_table.replace_schema_metadata({NOTES: notes.encode()})
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_writer(path) as file:
            pq.write_table(arrow_table, file)


def content_hash(table: pd.DataFrame) -> str:
    """Return the SHA-256 (hex) of sample, client, split and, if present, unseen and modality.

    It does not depend on the order of rows, other columns, notes or the format of the file.
    """
    ordered = table.sort_values(list(PARTITION_COLUMNS))
    digest = hashlib.sha256()
    digest.update(ordered["sample"].to_numpy().astype("<i8").tobytes())
    digest.update(ordered["client"].to_numpy().astype("<i4").tobytes())
    digest.update("\n".join(ordered["split"]).encode())
    if len(unseen := unseen_clients(table)):
        digest.update(b"\nunseen" + unseen.astype("<i4").tobytes())
    if MODALITY in table:
        digest.update(b"\nmodality" + ordered[MODALITY].to_numpy().astype("<i4").tobytes())
    return digest.hexdigest()


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
        _raise("statistics", problem, f"0 to {classes - 1}")
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
