"""Kept results of tracks: ``config/published/tracks/NAME/``, from which every verdict follows.

``values.parquet`` has a value for every entry, draw and client, ``clients.parquet`` the clients,
``runs.csv`` the runs with their points and costs, ``tried.csv`` every run of tuning, and
``tuning.parquet`` the values of tuning clients. A run that diverged has no values: its clients then
have those of `FLOOR`. Before 0.2.0 was released there were no names of clients, no version of
Fedloom and no values of tuning clients; such files are read, too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fl.base.errors import DataError
from fl.base.files import write_bytes
from fl.base.folders import CONFIG
from fl.base.schema import COMPLETE, DIVERGED
from fl.plan import track as track_file
from fl.plan.track import FOLDER
from fl.report.tables import HYPER, METADATA, parquet

PUBLISHED = Path("published") / FOLDER
"""Folder of the folders of tracks in a config folder."""

SECOND = "second"
"""Folder of the same with other tuning clients."""

FLOOR = "majority"
"""Entry of the values of what always predicts a client's most frequent class, or the mean."""

VALUES = {
    "budget": "int32",
    "entry": "string",
    "clients": "string",
    "draw": "int64",
    "client": "int32",
    "value": "float32",
}
"""Columns of values. ``clients`` is the role of the client, participants or newcomers: an entry can
have another point for each, so that a client's values in a draw are of one run alone.
"""

TUNING = {
    "budget": "int32",
    "entry": "string",
    "point": "int32",
    "clients": "string",
    "draw": "int64",
    "client": "int32",
    "value": "float32",
}
"""Columns of values of tuning clients. point: number of the entry's point among those of the same
budget and draw in the table of tuning runs, from 0 on.
"""

CLIENTS = {
    "draw": "int64",
    "client": "int32",
    "origin": "int32",
    "block": "int32",
    "name": "string",
    "clients": "string",
    "n_train": "int32",
    "n_val": "int32",
    "n_test": "int32",
}
"""Columns of clients. origin: number in the whole pool; block: what clients have in common, such as
the authority of a school; -1 if nothing. name: of the client in the data set; empty without names.
"""

RUNS = (
    *("budget", "entry", "title", "clients", "draw", "run", "state", "point", "start", "no_op"),
    *("at_edge", "seconds", "bytes", "operations", "numbers", "fedloom", "arithmetic", "torch"),
    *("numpy", "mkl", "onednn", "processor", "instructions"),
)
"""Columns of runs. point, start: the chosen point of the entry and of what it starts from. no_op:
the entry that it equals at this point. at_edge: keys whose value is at an edge of the grid. bytes,
operations: of all clients and the server, those of the start included. numbers: certified versions
of the code; fedloom: that of the package, with its commit.
"""

ENVIRONMENT = RUNS[RUNS.index("numbers") :]
"""Columns of runs that say what computed them."""

TRIED = ("budget", "entry", "start", "draw", "participants", "newcomers", "state", "chosen")
"""Columns of tuning runs, before those of grids, ``hp.KEY``. participants, newcomers: means over
the tuning clients of the value on their held-out samples. chosen: the clients for whom the point is
chosen.
"""


class Costs(NamedTuple):
    """What runs took.

    Attributes:
        seconds: Time.
        bytes: Bytes that clients and server sent.
        operations: Operations of clients and server.
    """

    seconds: float
    bytes: float
    operations: float


@dataclass(frozen=True)
class TrackResults:
    """The kept results of a track.

    Attributes:
        values: Values of clients, `VALUES`.
        clients: The clients, `CLIENTS`.
        runs: The runs, `RUNS`.
        tried: The runs of tuning, `TRIED` and ``hp.KEY``.
        tuning: Values of tuning clients, `TUNING`.
        about: By budget, what is known of the track's file when its entries were trained.
    """

    values: pd.DataFrame
    clients: pd.DataFrame
    runs: pd.DataFrame
    tried: pd.DataFrame
    tuning: pd.DataFrame
    about: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def values_of(self, entry: str, role: str, budget: int) -> pd.DataFrame:
        """Return the rows of ``values`` of an entry, for clients of a role at a budget."""
        return self._values_by_entry.get((budget, role, entry), self.values.iloc[:0])

    def runs_of(self, role: str, budget: int, entry: str | None = None) -> pd.DataFrame:
        """Return the rows of ``runs`` for clients of a role at a budget, of one entry or of all."""
        is_meant = (self.runs["clients"] == role) & (self.runs["budget"] == budget)
        if entry is not None:
            is_meant &= self.runs["entry"] == entry
        return self.runs[is_meant]

    @cached_property
    def _values_by_entry(self) -> dict[Any, pd.DataFrame]:
        """Grouped once, as comparisons ask for the values of every entry many times."""
        return dict(iter(self.values.groupby(["budget", "clients", "entry"])))


def track_results(
    values: pd.DataFrame,
    clients: pd.DataFrame,
    runs: pd.DataFrame,
    tried: pd.DataFrame,
    tuning: pd.DataFrame | None = None,
) -> TrackResults:
    """Return tables as they are kept: columns, types and the order of rows."""
    order = ["budget", "entry", "clients", "draw", "client"]
    hyper = sorted(str(column) for column in tried if str(column).startswith(HYPER))
    first = [*TRIED[:2], *hyper, *TRIED[2:]]
    return TrackResults(
        values[[*VALUES]].astype(VALUES).sort_values(order, ignore_index=True),
        clients[[*CLIENTS]].astype(CLIENTS).sort_values(["draw", "client"], ignore_index=True),
        runs.reindex(columns=[*RUNS]).reset_index(drop=True),
        tried.reindex(columns=first).reset_index(drop=True),
        _typed(pd.DataFrame(columns=[*TUNING]) if tuning is None else tuning, TUNING),
    )


def _typed(table: pd.DataFrame, types: dict[str, str]) -> pd.DataFrame:
    """Return the columns of a table that are kept, with their types."""
    typed: pd.DataFrame = table[[*types]].astype(types).reset_index(drop=True)
    return typed


def costs(run: Mapping[Any, Any]) -> Costs:
    """Return what a run of the table of runs took, without the run from which it starts."""
    stretches = json.loads(run["traffic"]) if isinstance(run["traffic"], str) else None
    if stretches is None or pd.isna(run["participants"]):
        return Costs(_number(run["seconds"]), math.nan, math.nan)
    participants = int(run["participants"])
    exchanged = participants * sum(n * (down + up) for n, down, up in stretches)
    computed = run["rounds"] * (participants * run["flops"] + run["flops_server"])
    return Costs(_number(run["seconds"]), float(exchanged), float(computed))


def _number(value: Any) -> float:
    return math.nan if pd.isna(value) else float(value)


def folder_of(folder: Path, name: str, second: bool = False) -> Path:
    """Return the folder of a track in a config folder; that of a second division is below it."""
    place = folder / PUBLISHED / name
    return place / SECOND if second else place


def names(folder: Path) -> list[str]:
    """Return the names of the tracks of a config folder that have kept results."""
    known = track_file.names(folder)
    return [name for name in known if (folder_of(folder, name) / "values.parquet").exists()]


def source(folder: Path) -> Path:
    """Return the config folder whose kept results are used: the package's if it has none.

    Raises:
        DataError: If the package has none either.
    """
    found = next((place for place in (folder, CONFIG) if names(place)), None)
    if found is None:
        problem = f"{folder / PUBLISHED}: no track has kept results"
        raise DataError(problem, advice="`make track-NAME` trains a track")
    return found


def read(place: Path) -> TrackResults:
    """Return the kept results in a folder (`folder_of`).

    Raises:
        DataError: If they are not there, or cannot be read.
    """
    path = place / "values.parquet"
    if not path.exists():
        advice = "`python -m tools.comparison TRACK` trains the track"
        raise DataError(f"{path}: does not exist", advice=advice)
    try:
        metadata = pq.read_schema(path).metadata or {}
        clients = pd.read_parquet(place / "clients.parquet")
        tuning = place / "tuning.parquet"
        return TrackResults(
            _typed(pd.read_parquet(path), VALUES),
            _typed(clients if "name" in clients else clients.assign(name=""), CLIENTS),
            _read_csv(place / "runs.csv", RUNS),
            _read_csv(place / "tried.csv", TRIED),
            _typed(
                pd.read_parquet(tuning) if tuning.exists() else pd.DataFrame(columns=[*TUNING]),
                TUNING,
            ),
            json.loads(metadata.get(METADATA, b"{}")),
        )
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise DataError(f"{place}: cannot be read: {error}") from error


def _read_csv(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    """Read a table whose empty texts are texts, and whose versions are no numbers."""
    table = pd.read_csv(path, dtype=dict.fromkeys(ENVIRONMENT, "object"))
    missing = {*columns} - {*table, "fedloom"}
    if missing:
        raise ValueError(f"{path.name} lacks {', '.join(sorted(missing))}")
    texts = ("entry", "title", "start", "state", "chosen", "point", "no_op", "at_edge", "clients")
    return table.assign(**{c: table[c].astype(object).fillna("") for c in texts if c in table})


def write(place: Path, results: TrackResults) -> TrackResults:
    """Write results into a folder; those of other budgets that are there stay.

    Returns:
        All results of the folder.

    Raises:
        DataError: If those are of other clients.
    """
    if (place / "values.parquet").exists():
        earlier = read(place)
        if not _are_of_same_clients(earlier, results):
            problem = f"{place}: has results of other clients, of another division or data set"
            raise DataError(problem, advice="move the folder away; what is trained stays stored")
        values, runs, tried, tuning = (
            _joined(getattr(earlier, key), getattr(results, key))
            for key in ("values", "runs", "tried", "tuning")
        )
        about = sorted({**earlier.about, **results.about}.items(), key=lambda item: int(item[0]))
        joined = track_results(values, results.clients, runs, tried, tuning)
        results = replace(joined, about=dict(about))
    place.mkdir(parents=True, exist_ok=True)
    for key in ("runs", "tried"):
        text = getattr(results, key).to_csv(index=False, lineterminator="\n")
        write_bytes(place / f"{key}.csv", text.encode())
    for key in ("clients", "tuning"):
        write_bytes(place / f"{key}.parquet", parquet(getattr(results, key), {}, "zstd"))
    # The values come last: if they are there, so are the other files.
    write_bytes(place / "values.parquet", parquet(results.values, results.about, "zstd"))
    return results


def _joined(earlier: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """Return rows of other budgets and the new ones, in the order of budgets."""
    earlier = earlier[~earlier["budget"].isin(new["budget"])]
    return pd.concat([earlier, new]).sort_values("budget", kind="stable", ignore_index=True)


def with_entries(
    results: TrackResults, others: TrackResults, are_same: bool = False
) -> TrackResults:
    """Return results with the entries of others, which replace entries of the same names.

    Args:
        results: The results.
        others: Results of the same clients (`check_clients`).
        are_same: Whether entries of the same names have the same keys, so that their results at
            other budgets stay.
    """

    def joined(first: pd.DataFrame, second: pd.DataFrame, entries: pd.Series) -> pd.DataFrame:
        is_replaced = first["entry"].isin(entries)
        if are_same:
            is_replaced &= first["budget"].isin(others.runs["budget"])
        new = second[second["entry"].isin(entries)]
        return pd.concat([first[~is_replaced], new], ignore_index=True)

    scored, tuned = others.runs["entry"], others.tried["entry"]
    return replace(
        results,
        values=joined(results.values, others.values, scored),
        runs=joined(results.runs, others.runs, scored),
        tried=joined(results.tried, others.tried, tuned),
        tuning=joined(results.tuning, others.tuning, tuned),
    )


def check_clients(track: str, kept: TrackResults, others: TrackResults) -> None:
    """Raise `DataError` unless kept results of a track and others are of the same clients."""
    if not _are_of_same_clients(kept, others):
        problem = f"{track}: the kept results are of other clients than your data set gives"
        advice = "compare the data set and the track's file with those of the kept results"
        raise DataError(problem, advice=advice)


def _are_of_same_clients(results: TrackResults, others: TrackResults) -> bool:
    """Whether results are of the same clients; older ones have no names."""
    first, second = (table.clients.drop(columns="name") for table in (results, others))
    return bool(first.equals(second))


def is_chosen(tried: pd.DataFrame, role: str) -> pd.Series:
    """Return which runs of tuning are of the point that was chosen for clients of a role."""
    return tried["chosen"].str.split().map(lambda roles: role in roles).astype(bool)


def entry_values(
    results: TrackResults, entry: str, role: str, budget: int = 1
) -> pd.DataFrame | None:
    """Return the values of an entry, clients by draws; NaN where a client was not scored.

    Clients of a run that diverged have the floor. None if a run is missing.

    Args:
        results: The results of the track.
        entry: Name of the entry.
        role: The clients, participants or newcomers.
        budget: The budget.
    """
    runs = results.runs_of(role, budget, entry)
    if runs.empty or not runs["state"].isin([COMPLETE, DIVERGED]).all():
        return None
    measured, floor = (results.values_of(name, role, budget) for name in (entry, FLOOR))
    lost = runs.loc[runs["state"] == DIVERGED, "draw"]
    scored = pd.concat([measured, floor[floor["draw"].isin(lost)]]).dropna(subset=["value"])
    return scored.pivot(index="client", columns="draw", values="value").astype("float64")


def floor_values(results: TrackResults, role: str, budget: int = 1) -> pd.DataFrame:
    """Return the values of the floor, clients by draws; NaN where a client was not scored."""
    rows = results.values_of(FLOOR, role, budget)
    return rows.pivot(index="client", columns="draw", values="value").astype("float64")


def mean_over_clients(values: pd.DataFrame) -> float:
    """Return the mean over clients of the means over draws, of values by clients and draws."""
    return float(values.mean(axis=1).mean())
