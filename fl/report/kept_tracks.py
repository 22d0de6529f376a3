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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fl.base.errors import DataError
from fl.base.files import write_bytes
from fl.base.folders import CONFIG
from fl.base.schema import COMPLETE, DIVERGED
from fl.plan import track as track_file
from fl.plan.track import FOLDER, Family, Track
from fl.report import claims, client_tests
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

TRIED = (*("budget", "entry", "start", "draw", "participants", "newcomers", "state", "chosen"),)
"""Columns of tuning runs, before those of grids, ``hp.KEY``. participants, newcomers: means over
the tuning clients of the value on their held-out samples. chosen: the clients for whom the point is
chosen.
"""

NO_OP, EQUAL, MISSING_RUN = "no-op", "equal", "no verdict"
UNSTABLE = "unstable"
"""Verdicts beside those of `fl.report.claims`."""

CLOSE = 1.01
"""Costs of which one is at most this multiple of the other are equal, as an entry may send a few
numbers beside the weights.
"""

SAME = 1e-6
"""Mean difference of a client up to which two methods do equally well, as kept values are rounded.
"""

COMPARISON_COLUMNS = [
    *("family", "entry", "other", "clients", "n", "blocks", "difference", "low", "high"),
    *("p", "p_models", "p_draws", "p_equal", "better", "worse", "skew", "verdict"),
]
"""Columns of the comparisons of entries, see `verdicts`."""


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


def folder_of(folder: Path, name: str, division: int = 0) -> Path:
    """Return the folder of a track in a config folder; of another division a folder below."""
    place = folder / PUBLISHED / name
    return place / SECOND if division else place


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
    """
    if (place / "values.parquet").exists():
        earlier = read(place)
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


def with_entries(results: TrackResults, others: TrackResults) -> TrackResults:
    """Return results in which the entries of other ones stand in place of those of their names.

    Raises:
        DataError: If the other results are of other clients.
    """
    if not results.clients.drop(columns="name").equals(others.clients.drop(columns="name")):
        advice = "the data set, the track's file and the version of the kept results"
        raise DataError("The kept results of the track are of other clients", advice=advice)
    entries = {*others.runs["entry"]}

    def joined(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
        stay, come = ~first["entry"].isin(entries), second["entry"].isin(entries)
        return pd.concat([first[stay], second[come]], ignore_index=True)

    values, runs = joined(results.values, others.values), joined(results.runs, others.runs)
    tuned = others.tried["entry"]
    tried, tuning = (
        pd.concat([old[~old["entry"].isin(tuned)], new], ignore_index=True)
        for old, new in ((results.tried, others.tried), (results.tuning, others.tuning))
    )
    return replace(results, values=values, runs=runs, tried=tried, tuning=tuning)


def entry_values(
    results: TrackResults, entry: str, role: str, budget: int = 1
) -> pd.DataFrame | None:
    """Return the values of an entry, clients by draws; NaN where a client was not scored.

    Clients of a run that diverged have the floor. None if a run is missing.

    Args:
        results: TrackResults results.
        entry: Name of the entry.
        role: The clients, participants or newcomers.
        budget: The budget.
    """
    runs = results.runs
    runs = runs[(runs["entry"] == entry) & (runs["clients"] == role) & (runs["budget"] == budget)]
    if runs.empty or not runs["state"].isin([COMPLETE, DIVERGED]).all():
        return None
    measured, floor = (results.values_of(name, role, budget) for name in (entry, FLOOR))
    lost = runs.loc[runs["state"] == DIVERGED, "draw"]
    scored = pd.concat([measured, floor[floor["draw"].isin(lost)]]).dropna(subset=["value"])
    return scored.pivot(index="client", columns="draw", values="value").astype("float64")


def verdicts(
    results: TrackResults,
    track: Track,
    budget: int = 1,
    levels: Sequence[float] = (claims.LEVEL,),
) -> pd.DataFrame:
    """Return a row for each comparison of the families of a track.

    Args:
        results: The results of the track.
        track: The track.
        budget: The budget.
        levels: Levels near which p-values are computed of more flips.

    Returns:
        `COMPARISON_COLUMNS` and those named last. ``n`` is the number of clients, and ``blocks``
        that of their blocks; NaN without blocks. ``difference`` is the mean over clients of the
        gain of ``entry`` on ``other`` (less of an error is a gain), with its bounds ``low`` and
        ``high``. Corrected p-values are ``p`` (clients and draws), ``p_models``
        (clients alone), ``p_draws`` (draws alone) and ``p_equal``; all but ``p_draws`` take blocks,
        where there are some, in place of clients. ``better`` and ``worse`` are shares of clients,
        ``skew`` is the skewness of clients' (or blocks') mean differences,
        ``no_op`` is the entry that it equals, and costs are multiples of those of ``other``.
        ``points`` and ``points_of_other`` are the numbers of points that were tried for both, and
        ``without_no_op`` what tuning without the no-op would have changed (`loss_without_no_op`).
        ``failed`` is the number of draws in which the entry diverged, or is not better than the
        floor where ``other`` is; with one, the verdict is `UNSTABLE`, unless it is behind: a test
        over clients and draws takes one lost draw for a large spread of all.
    """
    tables = [
        _family_verdicts(results, track, name, family, budget, levels)
        for name, family in track.families.items()
    ]
    return pd.concat(tables, ignore_index=True)


def _family_verdicts(
    results: TrackResults,
    track: Track,
    name: str,
    family: Family,
    budget: int,
    levels: Sequence[float],
) -> pd.DataFrame:
    """Return the rows of `verdicts` of one family."""
    runs = results.runs[results.runs["budget"] == budget]
    runs = runs[runs["clients"] == family.clients]
    entries = [entry for entry in family.entries if (runs["entry"] == entry).any()]
    no_ops = runs.groupby("entry")["no_op"].first()
    # A run that diverged has ended early.
    complete = runs[runs["state"] == COMPLETE]
    means = complete.groupby("entry")[["bytes", "operations"]].mean().reindex(no_ops.index)
    baseline = entry_values(results, family.baseline, family.clients, budget)
    gains: dict[str, pd.DataFrame] = {}
    failed: dict[str, int] = {}
    if baseline is not None:
        for entry in entries:
            values = entry_values(results, entry, family.clients, budget)
            if values is not None and not no_ops[entry]:
                gains[entry] = track.sign * (values - baseline)
                failed[entry] = _failed_draws(results, track, family, entry, budget)
    tested = _tested(results, gains, track.margin, levels)
    points = _points_tried(results, budget)
    records = []
    for entry in entries:
        test = tested.get(entry, {"verdict": NO_OP if no_ops[entry] else MISSING_RUN})
        test = {**test, "failed": failed.get(entry, 0)}
        if test["failed"] and test["verdict"] != claims.BEHIND:
            test["verdict"] = UNSTABLE
        ratios = {
            cost: means.loc[entry, cost] / means[cost].get(family.baseline, math.nan)
            for cost in ("bytes", "operations")
        }
        about: dict[str, Any] = {"family": name, "entry": entry, "other": family.baseline}
        about |= {"clients": family.clients, "no_op": no_ops[entry]}
        about |= {"points": points.get(entry, 0), "points_of_other": points.get(family.baseline, 0)}
        if no_ops[entry]:
            loss = loss_without_no_op(results, track, entry, family.clients, budget)
            about["without_no_op"] = loss
        records.append({**about, **test, **ratios})
    columns = [*COMPARISON_COLUMNS, "no_op", "without_no_op", "failed", "points", "points_of_other"]
    return pd.DataFrame(records).reindex(columns=[*columns, "bytes", "operations"])


def _points_tried(results: TrackResults, budget: int) -> dict[str, int]:
    """Return the number of points that were tried for each entry at a budget."""
    tried = results.tried[results.tried["budget"] == budget]
    counts = tried.groupby(["entry", "draw"]).size().groupby("entry").max()
    return {str(entry): int(count) for entry, count in counts.items()}


def loss_without_no_op(
    results: TrackResults, track: Track, entry: str, role: str, budget: int = 1
) -> float:
    """Return what the best point of an entry other than its no-op has more than the no-op.

    It is of the tuning clients who chose: 0 or less where the no-op was chosen, and no estimate for
    others. NaN if no other point was tried, as where only the start of an entry is at its no-op.

    Args:
        results: The results of the track.
        track: The track.
        entry: Name of the entry.
        role: The clients, participants or newcomers.
        budget: The budget.
    """
    tried = results.tried
    tried = tried[(tried["entry"] == entry) & (tried["budget"] == budget)]
    no_op = track.no_op(entry)
    if not no_op:
        return math.nan
    is_off = np.all([tried[f"{HYPER}{key}"] == value for key, value in no_op.items()], axis=0)
    point = [column for column in tried if str(column).startswith(HYPER)]

    def best(rows: pd.DataFrame) -> float:
        of_points = rows.groupby([*point, "start"], dropna=False)[role]
        means = track.sign * of_points.agg(lambda values: values.mean(skipna=False))
        return float(means.max())

    return best(tried[~is_off]) - best(tried[is_off])


def _failed_draws(
    results: TrackResults, track: Track, family: Family, entry: str, budget: int
) -> int:
    """Return the number of draws in which an entry diverged, or its baseline alone beats the floor.

    Where the baseline is not better than the floor either, an entry that is not tells nothing.
    """
    runs = results.runs[results.runs["entry"] == entry]
    runs = runs[(runs["clients"] == family.clients) & (runs["budget"] == budget)]
    lost = runs.loc[runs["state"] == DIVERGED, "draw"]
    own, base = (
        gains_on_floor(results, track, family, name, budget) for name in (entry, family.baseline)
    )
    return int(((own <= 0) & ((base > 0) | own.index.isin(lost))).sum())


def gains_on_floor(
    results: TrackResults,
    track: Track,
    family: Family,
    entry: str | None = None,
    budget: int = 1,
) -> pd.Series:
    """Return how much better an entry is than the floor by draw, mean over clients.

    Args:
        results: The results of the track.
        track: The track.
        family: The family whose clients are meant.
        entry: Name of the entry; None: the family's baseline.
        budget: The budget.

    Returns:
        The gains; none if a run is missing.
    """
    values = entry_values(results, entry or family.baseline, family.clients, budget)
    if values is None:
        return pd.Series(dtype="float64")
    # Means of the same numbers in the same order, as a run that diverged is equal to the floor.
    gains: pd.Series = track.sign * (
        values.mean() - floor_values(results, family.clients, budget).mean()
    )
    return gains


def floor_values(results: TrackResults, role: str, budget: int = 1) -> pd.DataFrame:
    """Return the values of the floor, clients by draws; NaN where a client was not scored."""
    rows = results.values_of(FLOOR, role, budget)
    return rows.pivot(index="client", columns="draw", values="value").astype("float64")


def mean_over_clients(values: pd.DataFrame) -> float:
    """Return the mean over clients of the means over draws, of values by clients and draws."""
    return float(values.mean(axis=1).mean())


def _tested(
    results: TrackResults,
    gains: Mapping[str, pd.DataFrame],
    margin: float,
    levels: Sequence[float] = (claims.LEVEL,),
) -> dict[str, dict[str, Any]]:
    """Return what is tested of comparisons, corrected together, by entry.

    Args:
        results: TrackResults results, of which the clients are read.
        gains: Gains of each entry, clients by draws.
        margin: Largest difference of equal entries.
        levels: As in `verdicts`.
    """
    if not gains:
        return {}
    first = next(iter(gains.values()))
    stacked = [gain.reindex(index=first.index, columns=first.columns) for gain in gains.values()]
    values = np.stack([gain.to_numpy() for gain in stacked])
    block = results.clients.groupby("client")["block"].first()[first.index]
    has_blocks = bool((block >= 0).all())  # Clients of a block are not independent.
    blocks = block.to_numpy() if has_blocks else None
    test = client_tests.family_test(values, margin=margin, blocks=blocks, levels=levels)
    p_draws = client_tests.draws_p_values(values)
    tests = {}
    for i, (entry, gain) in enumerate(gains.items()):
        mean = gain.mean(axis=1)
        record: dict[str, Any] = {
            key: float(getattr(test, key)[i])
            for key in ("difference", "low", "high", "p", "p_models", "p_equal")
        }
        verdict = claims.OPEN
        if record["p_equal"] <= claims.LEVEL:
            verdict = EQUAL
        elif record["p"] <= claims.LEVEL:
            verdict = claims.AHEAD if record["difference"] > 0 else claims.BEHIND
        tests[entry] = record | {
            "n": int(mean.notna().sum()),
            "blocks": block[mean.notna()].nunique() if has_blocks else math.nan,
            "p_draws": float(p_draws[i]),
            "better": float((mean > SAME).mean()),
            "worse": float((mean < -SAME).mean()),
            "skew": _skewness(mean.groupby(block).sum() if has_blocks else mean),
            "verdict": verdict,
        }
    return tests


def _skewness(values: pd.Series) -> float:
    """Return the third central moment over the 1.5th power of the second; 0 without spread."""
    centred = values - values.mean()
    spread = (centred**2).mean()
    return float((centred**3).mean() / spread**1.5) if spread > 0 else 0.0


def at_equal_cost(results: TrackResults, track: Track, cost: str) -> pd.DataFrame:
    """Compare the entries of the families at the budget 1 with their baseline at equal cost.

    The value that a baseline would have at the cost of an entry is between those at the two
    budgets around it, in proportion to the logarithm of costs; below the lowest cost it is that of
    the lowest. An entry that costs more than the baseline at its largest budget is not compared,
    and none is where the baseline has one budget.

    Args:
        results: TrackResults results.
        track: The track.
        cost: ``operations`` or ``bytes``.

    Returns:
        `COMPARISON_COLUMNS` of entries of which no run is missing.
    """
    records = []
    for name, family in track.families.items():
        role, curve = family.clients, []
        runs = results.runs[results.runs["clients"] == role]
        complete = runs["state"] == COMPLETE
        for budget in sorted(runs.loc[runs["entry"] == family.baseline, "budget"].unique()):
            values = entry_values(results, family.baseline, role, int(budget))
            is_baseline = (runs["entry"] == family.baseline) & (runs["budget"] == budget)
            if values is not None:
                curve.append((float(runs.loc[is_baseline & complete, cost].mean()), values))
        gains: dict[str, pd.DataFrame] = {}
        for entry in family.entries:
            entry_runs = runs[(runs["entry"] == entry) & (runs["budget"] == 1)]
            values = entry_values(results, entry, role)
            price = float(entry_runs.loc[entry_runs["state"] == COMPLETE, cost].mean())
            if len(curve) < 2 or values is None or entry_runs["no_op"].iloc[0]:
                continue
            if price <= CLOSE * curve[-1][0]:
                gains[entry] = track.sign * (values - _at_cost(curve, price))
        about = {"family": name, "other": family.baseline, "clients": role}
        tests = _tested(results, gains, track.margin)
        records += [{**about, "entry": entry, **test} for entry, test in tests.items()]
    return pd.DataFrame(records, columns=COMPARISON_COLUMNS)


def _at_cost(curve: list[tuple[float, pd.DataFrame]], price: float) -> pd.DataFrame:
    """Return values at a cost, between those of a curve of rising costs."""
    prices = np.log([max(cost, 1.0) for cost, _ in curve])
    place = float(np.interp(math.log(max(price, 1.0)), prices, np.arange(len(curve))))
    low = int(place)
    high = min(low + 1, len(curve) - 1)
    share = place - low
    return (1 - share) * curve[low][1] + share * curve[high][1]
