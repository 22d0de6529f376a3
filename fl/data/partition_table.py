"""Partition tables: the client and the split of each sample.

A table is a pandas DataFrame with one row per sample that is used: ``sample`` (int64, an index into
the data set), ``client`` (int32, 0..K-1 without gaps) and ``split`` (text: train, val, test
or server, see `fl.base.schema.SERVER`). A column ``unseen`` (bool) may mark clients that are held
out of training; further columns, such as ``domain`` or `ORIGIN`, are allowed. ``attrs["notes"]``
lists adjustments that a scheme made to its definition. This module checks, stores and describes
tables from anywhere; `fl/data/schemes` has the schemes.
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

from fl.base import files
from fl.base.errors import DataError
from fl.base.files import atomic_writer, disk_errors, parse_json
from fl.base.folders import path_of
from fl.base.schema import HOLDINGS, PARTITION_COLUMNS, SPLITS, UNSEEN
from fl.data.readers.flbench import read_partition

MODALITY = "modality"
"""Column of a partition: number of the modality that a client holds."""
ORIGIN = "origin"
"""Column of a partition of a part of the clients: a client's number among all of them."""

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


def sizes_of_results(table: pd.DataFrame) -> pd.Series[int]:
    """Count the samples by client and split, where splits are named as in results.

    Test samples of unseen clients are of the split `fl.base.schema.UNSEEN`. Left out are their
    validation samples and those of the server, of which results have no rows.
    """
    split = table["split"]
    is_unseen = table["client"].isin(unseen_clients(table))
    split = split.mask(is_unseen & (split == "test"), UNSEEN)
    has_rows = split.isin((*SPLITS, UNSEEN)) & ~(is_unseen & (split == "val"))
    return table[has_rows].groupby([table["client"], split]).size()


def read_users_table(spec: Mapping[str, Any]) -> pd.DataFrame:
    """Return the user's own table at the ``path`` of a scheme's spec, Parquet or FL-bench's pickle.

    Raises:
        DataError: If the file cannot be read.
    """
    path = path_of(spec["path"])
    return read_partition(path) if path.suffix == ".pkl" else read(path)


def left_out_note(table: pd.DataFrame, samples: int, source: str) -> str:
    """Return a note on the samples of a data set that a user's table lacks; empty if none.

    Args:
        table: The table.
        samples: Number of the data set's samples.
        source: Name of the table, for the note.
    """
    count = samples - table["sample"].nunique()
    verb = "is" if count == 1 else "are"
    note = f"{count:,} of the {samples:,} samples {verb} left out: {source} has no client of them"
    return note if count > 0 else ""


def read(path: str | Path) -> pd.DataFrame:
    """Return the table in a Parquet file with its extra columns and notes.

    Whole numbers of another width are converted if no value changes; nothing else is checked (see
    `validate`).

    Raises:
        DataError: If the file cannot be read.
    """
    try:
        table, metadata = files.read_parquet(path)
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
