"""Devices from a table of your own: a CSV or Parquet file with a row for each client.

No publication: it is yours. What is in the file is part of what a run is.

Columns are ``client`` (0, 1, ... as in the partition), ``speed`` (floating-point operations a
second), ``download`` and ``upload`` (bytes a second), and, if you like, ``failure`` (probability
that a client breaks off in a round). With the columns ``begin`` and ``end``, in seconds from 0 to
the key `period`, a client is there between them alone; several times of a client have a row each,
in which the other columns are equal. Without a begin and an end, a client is always there. There
may be more clients than a study has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from fl.api import ALL_TASKS, BuildContext, DeviceTable, Positive, Presence
from fl.base.errors import DataError
from fl.base.folders import path_of
from fl.base.hashes import change_stamp
from fl.blocks.device_draws import DAY
from fl.data.readers.tables import NUMBER, column_names, read_pieces, require_column

REQUIRED = ("client", "speed", "download", "upload")
OPTIONAL = ("failure", "begin", "end")

SHORTEST = 1e-3
"""Seconds of the shortest time for which a client is there."""


@dataclass(frozen=True)
class Table:
    """Devices from a file.

    Attributes:
        path: Path of the file, ``.csv`` or ``.parquet``.
        period: Seconds after which the times of presence repeat.
    """

    path: str
    period: Positive = DAY

    tasks: ClassVar = ALL_TASKS
    files: ClassVar = ("path",)

    def check(self, clients: int | None) -> None:
        """Raise `DataError` for a file that cannot be used for so many clients."""
        self._table(1 if clients is None else clients)

    def build(self, context: BuildContext) -> DeviceTable:
        """Return the table of the devices."""
        return self._table(context.clients)

    def _table(self, clients: int) -> DeviceTable:
        path = path_of(self.path)
        columns = _read(path, change_stamp([path]))
        _check_times(path, columns, self.period)
        rows = columns["client"] < clients
        of_row = columns["client"][rows].astype(np.int64)
        known, first = np.unique(of_row, return_index=True)
        missing = np.setdiff1d(np.arange(clients), known)
        if len(missing):
            problem = f"{path}: column 'client': {missing[0]} is missing"
            raise DataError(problem, f"a row or more for each client from 0 to {clients - 1}")
        names = (*REQUIRED[1:], "failure")
        of_clients = {name: columns[name][rows][first] for name in names}
        presence = None
        if not np.isnan(columns["begin"][rows]).all():
            order = np.argsort(of_row, kind="stable")
            begin, end = (columns[name][rows][order] for name in ("begin", "end"))
            presence = Presence(
                of_row[order],
                np.nan_to_num(begin),
                np.where(np.isnan(end), self.period, end),
                self.period,
            )
        return DeviceTable(**of_clients, presence=presence)


@lru_cache(maxsize=4)
def _read(path: Path, stamp: str) -> dict[str, np.ndarray]:
    """Return all columns of a file, float64 [rows], which is read again if its stamp differs."""
    names = column_names(path)
    for name in REQUIRED:
        require_column(path, names, "a needed column", name)
    unknown = [name for name in names if name not in (*REQUIRED, *OPTIONAL)]
    if unknown:
        problem = f"{path}: column {unknown[0]!r}: is unknown"
        raise DataError(problem, f"{', '.join(REQUIRED)}, and perhaps {', '.join(OPTIONAL)}")
    pieces = [*read_pieces(path, dict.fromkeys(names, NUMBER), OPTIONAL)]
    if not pieces:
        raise DataError(f"{path}: has no rows", "a row for each client")
    columns = {name: np.concatenate([piece[name] for piece in pieces]) for name in names}
    empty = np.full(len(columns["client"]), np.nan)
    columns = {**dict.fromkeys(OPTIONAL, empty), **columns}
    columns["failure"] = np.nan_to_num(columns["failure"])
    client, failure = columns["client"], columns["failure"]
    is_whole = (client >= 0) & (client == np.floor(client))
    _refuse(path, "client", client, ~is_whole, "whole numbers from 0 on")
    for name in REQUIRED[1:]:
        _refuse(path, name, columns[name], columns[name] <= 0, "numbers above 0")
    _refuse(path, "failure", failure, (failure < 0) | (failure > 1), "numbers from 0 to 1")
    has_time = ~np.isnan(columns["begin"])
    _, first, place = np.unique(client, return_index=True, return_inverse=True)
    is_repeated = first[place] != np.arange(len(client))
    allowed = "one row for each, or a begin and an end in each"
    _refuse(path, "client", client, is_repeated & ~has_time, allowed)
    for name in (*REQUIRED[1:], "failure"):
        is_other = columns[name] != columns[name][first[place]]
        _refuse(path, name, columns[name], is_other, "one value in all rows of a client")
    return columns


def _check_times(path: Path, columns: dict[str, np.ndarray], period: float) -> None:
    """Raise `DataError` for begins and ends that are no intervals of a period."""
    begin, end = columns["begin"], columns["end"]
    for name, other in (("begin", "end"), ("end", "begin")):
        is_alone = np.isnan(columns[name]) & ~np.isnan(columns[other])
        _refuse(path, name, columns[name], is_alone, f"a number, as {other} has one")
    _refuse(path, "begin", begin, (begin < 0) | (begin >= period), f"0 to {period:g}, the period")
    allowed = f"numbers above begin, at most {period:g}, the period"
    _refuse(path, "end", end, (end < begin + SHORTEST) | (end > period), allowed)


def _refuse(
    path: Path, column: str, values: np.ndarray, is_wrong: np.ndarray, allowed: str
) -> None:
    """Raise `DataError` for the first wrong cell of a column, if there is any."""
    if is_wrong.any():
        row = int(is_wrong.argmax())
        problem = f"{path}: column {column!r}, row {row + 1}: is {values[row]:g}"
        raise DataError(problem, allowed)
