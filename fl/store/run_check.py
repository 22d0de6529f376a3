"""Checks of a stored run: its files, its record and its numbers.

Hashes show that files have not changed, not that their content is valid. Every run of Fedloom
passes these checks. A run that fails one was made by other software or a broken machine, and no
table may contain its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args, get_origin

from fl.base import fields, files, identity
from fl.base.errors import ConfigError, DataError, FedloomError, Location
from fl.base.fields import Bound, Count, Index, NonNegative, Seed
from fl.base.folders import partition_folder
from fl.base.schema import (
    CLOCK,
    GLOBAL,
    GROUP,
    METRIC_COLUMNS,
    PARTIAL_METRICS,
    PERSONAL,
    REWEIGHTED,
    SERVER_ROW,
    SHARES,
    SPLITS,
    UNSEEN,
)
from fl.store.run_record import (
    METRICS,
    PREDICTIONS,
    RECORD,
    RUN_FILES,
    STATE,
    TRACES,
    WEIGHTS,
    Costs,
    ExecutionRecord,
    RunRecord,
    UnknownCosts,
    is_name,
)
from fl.store.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import pandas as pd
    from torch import Tensor

LARGEST = 2**31 - 1
"""Largest round and client: tables store them in 32 bits."""

WORDS = {"split": (*SPLITS, UNSEEN, CLOCK), "stage": (GLOBAL, PERSONAL)}
KEY = [name for name in METRIC_COLUMNS if name not in ("value", "n")]
KINDS = {
    **dict.fromkeys(("round", "client", "n"), ("iu", "whole numbers")),
    **dict.fromkeys(("split", "stage", "metric"), ("", "text")),
    "value": ("f", "numbers"),
}
"""Kinds of type of each column, as NumPy calls them ("" for text), and in words."""


@dataclass(frozen=True)
class _ComponentSpec:
    name: str


@dataclass(frozen=True)
class _Training:
    rounds: Count


@dataclass(frozen=True)
class _Spec:
    dataset: _ComponentSpec
    partition: _ComponentSpec
    model: _ComponentSpec
    method: _ComponentSpec
    training: _Training
    terms: list[_ComponentSpec]
    seed: Seed
    start: str | None = None
    test: Literal["own", "global", "reweighted"] = "own"
    train_on: str | Count | None = None
    alterations: list[_ComponentSpec] = field(default_factory=list)
    wire: list[_ComponentSpec] = field(default_factory=list)
    aggregation: list[_ComponentSpec] = field(default_factory=list)


@dataclass(frozen=True)
class _TableRecord:
    """Keys of a record that tables need."""

    run: str
    state: Literal["complete", "diverged"]
    rounds: Annotated[int, Bound(low=0, high=LARGEST)]
    seconds: NonNegative
    execution: ExecutionRecord
    versions: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str | bool | None] = field(default_factory=dict)
    costs: Costs = field(default_factory=Costs)
    start: str | None = None
    attackers: list[Index] | None = None


@dataclass(frozen=True)
class _FullRecord(_TableRecord):
    spec: _Spec = field(kw_only=True)
    code: dict[str, str] = field(kw_only=True)
    code_files: dict[str, str] = field(default_factory=dict)
    defaults: list[str] = field(default_factory=list)
    note: str = ""


_fields = cache(fields.fields)


def _declared_keys(hint: Any, value: Any) -> Any:
    """Return a value without keys that its dataclass does not declare.

    Other versions of Fedloom can write more keys.
    """
    if is_dataclass(hint) and isinstance(value, Mapping):
        declared = _fields(cast(type, hint))
        return {k: _declared_keys(declared[k].hint, value[k]) for k in value if k in declared}
    if get_origin(hint) is list and isinstance(value, list):
        return [_declared_keys(get_args(hint)[0], item) for item in value]
    return value


def check_keys(record: Mapping[str, Any], location: Location) -> None:
    """Check that a record has all keys; names in its spec need not exist.

    Raises:
        ConfigError: For the first wrong key.
    """
    fields.parse(_FullRecord, _declared_keys(_FullRecord, record), location)


def check_record(record: Mapping[str, Any], location: Location) -> None:
    """Check that a table can be made from a record.

    Raises:
        ConfigError: For the first wrong key.
    """
    fields.parse(_TableRecord, _declared_keys(_TableRecord, record), location)
    start = record.get("start")
    if start is not None and (start == record["run"] or not is_name(start)):
        raise ConfigError(location / "start", f"is {start[:100]!r}", "the name of another run")


def check_whole(record: Mapping[str, Any], location: Location) -> None:
    """Check that a record is complete, and that its values agree with each other.

    Raises:
        ConfigError: For the first wrong key.
    """
    check_record(record, location)
    check_keys(record, location)
    spec, rounds = record["spec"], record["rounds"]
    planned = spec["training"]["rounds"]
    may_stop_early = (
        record["state"] != "complete" or spec["training"].get("early_stopping") is not None
    )
    if rounds > planned or (rounds < planned and not may_stop_early):
        raise ConfigError(location / "rounds", f"is {rounds}", f"{planned}, as in the spec")
    trained_on = spec.get("train_on")
    start = trained_on if isinstance(trained_on, str) else None
    if spec.get("start") is not None:
        start = identity.run_id(spec["start"], spec["seed"])
    if record.get("start") != start:
        # Names contain hashes, so runs cannot start from each other in a circle.
        raise ConfigError(
            location / "start", f"is {record.get('start')!r}", f"{start}, as in the spec"
        )


def check_id(record: Mapping[str, Any], run: str, source: str) -> None:
    """Check that a record belongs to ``run``, by an id computed from its spec and code.

    Raises:
        DataError: If it belongs to another run.
    """
    try:
        point = identity.point_id(record["spec"], record["code"], record.get("defaults", ()))
        computed = identity.run_id(point, record["spec"]["seed"])
    except (KeyError, TypeError, ValueError, RecursionError, AttributeError) as error:
        raise DataError(f"{source}: its record has an invalid spec ({error})") from error
    if not computed == run == record["run"]:
        raise DataError(f"{source}: its record is that of run {computed}")


def joined_metrics(
    tables: Sequence[pd.DataFrame], records: Sequence[RunRecord], sources: Sequence[str]
) -> pd.DataFrame:
    """Return the metrics of one or more runs, one run after another, after a check.

    The check covers, in this order: columns, types, numbers out of range, unknown words, values
    that are not finite or no shares, duplicate rows, missing rounds at the end. Runs are checked
    together, which is several times faster for short runs.

    Args:
        tables: Metrics of each run.
        records: Record of each run.
        sources: Text of each run for errors.

    Raises:
        DataError: For the first problem; its message begins with the run's source.
    """
    import numpy as np
    import pandas as pd

    for rows, source in zip(tables, sources, strict=True):
        _check_kinds(rows, source)
    rows = pd.concat([frame[list(METRIC_COLUMNS)] for frame in tables], ignore_index=True)
    owner = np.repeat(np.arange(len(tables)), [len(frame) for frame in tables])
    last = np.array([record.rounds for record in records])
    diverged = np.array([record.state == "diverged" for record in records])
    for problem, mask in _problems(rows, owner, last[owner], diverged[owner]):
        for index in np.flatnonzero(mask)[:1]:
            row = ", ".join(f"{name} {value}" for name, value in rows.loc[index].items())
            raise DataError(f"{sources[owner[index]]}: {problem}; the row: {row}")
    ends = rows["round"].groupby(owner).max().to_numpy()
    for i in np.flatnonzero(ends != last)[:1]:
        raise DataError(f"{sources[i]}: ends after round {ends[i]}. Allowed: round {last[i]}")
    return rows


def _check_kinds(rows: pd.DataFrame, source: str) -> None:
    from pandas.api import types

    if not {*METRIC_COLUMNS} <= {*rows.columns}:
        listed = ", ".join(map(str, rows.columns)) or "none"
        raise DataError(f"{source}: has the columns {listed}. Allowed: {', '.join(METRIC_COLUMNS)}")
    for name, (kinds, allowed) in KINDS.items():
        column = rows[name]
        fits = column.dtype.kind in kinds if kinds else types.is_string_dtype(column.dtype)
        if not fits or (name != "value" and column.isna().any()):
            raise DataError(
                f"{source}: column {name!r} is {column.dtype}. Allowed: {allowed}, no empty cell"
            )
    if rows.empty:
        raise DataError(f"{source}: has no rows. Allowed: one for each client, round and metric")


def _problems(
    rows: pd.DataFrame, owner: np.ndarray, last: np.ndarray, diverged: np.ndarray
) -> Iterator[tuple[str, pd.Series[bool]]]:
    """Return each kind of problem, and a mask of the rows that have it.

    Args:
        rows: Metrics of all runs.
        owner: Run of each row.
        last: Last round of each row's run.
        diverged: Whether each row's run diverged; only its values may be infinite or NaN.
    """
    yield "round is not from 0 to the run's last", (rows["round"] < 0) | (rows["round"] > last)
    is_client = rows["client"].between(0, LARGEST)
    is_of_server = (rows["client"] == SERVER_ROW) & (rows["split"] == CLOCK)
    yield f"client is not from 0 to {LARGEST}", ~is_client & ~is_of_server
    yield "n is less than 1", rows["n"] < 1
    for name, allowed in WORDS.items():
        yield f"{name} is none of {', '.join(allowed)}", ~rows[name].isin(allowed)
    value, share = rows["value"], rows["metric"].isin(SHARES)
    infinite = value.isna() | value.abs().eq(float("inf"))
    yield "value is not finite", infinite & ~diverged
    yield "value is not from 0 to 1", share & ~value.between(0, 1) & ~infinite
    yield f"two rows have one {', '.join(KEY)}", rows[KEY].assign(owner=owner).duplicated()


def check_rounds(rows: pd.DataFrame, record: RunRecord, source: str) -> None:
    """Check that no rows of a run are missing, as far as its record and its other rounds tell.

    Each round has a training loss of every participant. Each evaluated round has the same clients,
    numbers of samples and metrics. A record of an earlier version says less, and is checked less.

    Raises:
        DataError: For the first problem.
    """
    training, last = record.spec["training"], record.rounds
    costs = None if isinstance(record.costs, UnknownCosts) else record.costs
    varies = training.get("partial_work") == "dropped" or bool(record.spec.get("devices"))
    if costs is not None and costs.participants and not varies:
        clients = rows[rows["split"] == "train"].groupby("round")["client"].nunique()
        for round_, count in clients.reindex(range(1, last + 1), fill_value=0).items():
            if count != costs.participants:
                problem = f"round {round_} has training losses of {count} clients"
                raise DataError(f"{source}: {problem}. Allowed: {costs.participants}")
    scored = rows[~rows["split"].isin(("train", CLOCK)) & (rows["round"] > 0)]
    every, rounds = training.get("evaluate_every"), {*scored["round"].tolist()}
    if every and rounds:
        due = {r for r in range(1, last + 1) if r % every == 0 or r == training["rounds"]}
        # A run whose training loss is no longer finite ends without an evaluation.
        optional = {last} if record.state == "diverged" else set()
        for round_ in sorted((due - optional - rounds) | (rounds - due))[:1]:
            problem = "is not evaluated" if round_ in due else "is evaluated"
            allowed = f"every round that {every} divides, and round {training['rounds']}"
            raise DataError(f"{source}: round {round_} {problem}. Allowed: {allowed}")
    whole = scored[~scored["metric"].isin(PARTIAL_METRICS)]
    counts = whole.groupby([name for name in KEY if name != "round"] + ["n"]).size()
    uneven = counts[counts != len(rounds)]
    for key, count in zip(uneven.index.tolist(), uneven.tolist(), strict=True):
        client, split, stage, metric, _ = key
        problem = f"client {client} has {metric} ({stage}, {split}) in {count} evaluated rounds"
        raise DataError(f"{source}: {problem}. Allowed: {len(rounds)}, with equal n")


def check_clients(
    rows: pd.DataFrame, record: RunRecord, sizes: pd.Series[int], source: str
) -> None:
    """Check that the clients of a run and their numbers of samples are those of its partition.

    Args:
        rows: Metrics of the run.
        record: Record of the run.
        sizes: Number of samples by client and split, see
            `fl.data.partition_table.sizes_of_results`.
        source: Text of the run for errors.

    Raises:
        DataError: For the first problem.
    """
    spec, rows = record.spec, rows[rows["metric"] != REWEIGHTED]
    if spec.get("train_on") is not None:  # On fewer samples, or on images.
        rows = rows[rows["split"] != "train"]
    pairs = rows[["client", "split", "stage", "n"]].drop_duplicates()
    if spec.get("test") == "global":
        union = sizes.groupby("split").transform("sum")
        sizes = sizes.where(sizes.index.get_level_values("split") != "test", union)
    expected: dict[tuple[int, str], int] = dict(
        zip(sizes.index.tolist(), sizes.tolist(), strict=True)
    )
    for client, split, n in pairs[["client", "split", "n"]].itertuples(index=False):
        size = expected.get((client, split), 0)
        if n != size:
            problem = f"client {client} has {n} {split} samples"
            raise DataError(f"{source}: {problem}. Allowed: {size}, as in the partition")
    # A run can diverge before its first evaluation.
    is_unscored = record.state == "diverged" and (pairs["split"] == "train").all()
    if is_unscored or spec["training"].get("evaluate_clients") is not None:
        return
    shared = pairs[(pairs["stage"] == GLOBAL) & (pairs["split"] != "train")]
    stage = shared if len(shared) else pairs[pairs["split"] == "test"]
    scored = {*zip(stage["client"], stage["split"], strict=True)}
    # Not every model serves unseen clients.
    splits = {"val", "test", *stage["split"]} if len(shared) else {"test"}
    due = {pair for pair in expected if pair[1] in splits}
    for client, split in sorted(due - scored)[:1]:
        problem = f"client {client} has {split} samples, and no {split} row"
        raise DataError(f"{source}: {problem}. Allowed: rows of every client of the partition")


def _partition_sizes(record: RunRecord, results: Path) -> pd.Series[int] | None:
    """Return the samples of each client in the run's partition; None if it is not there."""
    from fl.data import partition_table, partitioning

    folder = partition_folder(results, record.code.get("partition", ""))
    if not files.is_file(folder / partitioning.RECORD_FILE):
        return None
    partition = files.read_sealed(folder / partitioning.RECORD_FILE)
    table = folder / partitioning.TABLE_FILE
    is_same = partition["content"] == record.data.get("partition")
    # Another check tells partitions that have changed.
    if not is_same or files.find_damage(table, partition["files"][partitioning.TABLE_FILE]):
        return None
    return partition_table.sizes_of_results(partition_table.read(table))


def check_predictions(table: pd.DataFrame, source: str) -> None:
    """Check (`DataError`) the columns of predictions, see `fl.engine.predictions`."""
    from pandas.api import types

    groups = [GROUP] if GROUP in table else []
    texts, numbers = ["stage", "split", *groups], ["client", "sample", "label", "predicted"]
    scores = [name for name in table.columns if name not in (*texts, *numbers)]
    expected = ["stage", "split", "client", "sample", *groups, "label", "predicted"]
    expected += [f"score_{k}" for k in range(len(scores))]
    if [*table.columns] != expected or not scores:
        raise DataError(f"{source}: has columns other than {', '.join(expected)}")
    fits = all(types.is_string_dtype(table[name]) for name in texts)
    fits &= all(types.is_integer_dtype(table[name]) for name in numbers)
    if not fits or not all(types.is_float_dtype(table[name]) for name in scores):
        raise DataError(f"{source}: has a column of another type. Allowed: text, numbers, scores")


def check_traces(traces: Mapping[str, Tensor], last: int, source: str) -> None:
    """Check the traces of a run.

    ``round`` has the round of each entry of all other traces, in ascending order.

    Args:
        traces: Tensors by name.
        last: Number of the run's rounds.
        source: Text of the run for errors.

    Raises:
        DataError: For the first problem.
    """
    if not traces:
        return
    # A file can hold anything under these names, so nothing here counts on a tensor.
    shapes = {name: tuple(getattr(trace, "shape", ())) for name, trace in traces.items()}
    count = shapes.get("round", ())
    if len(count) != 1 or str(getattr(traces["round"], "dtype", "")) != "torch.int64":
        raise DataError(f"{source}: round is missing or no list. Allowed: int64 [rounds evaluated]")
    rounds = traces["round"].tolist()
    if rounds != sorted({*rounds} & {*range(1, last + 1)}):
        allowed = f"rising numbers from 1 to {last}"
        raise DataError(f"{source}: round is {str(rounds)[:100]}. Allowed: {allowed}")
    for name, shape in shapes.items():
        if shape[:1] != count:
            allowed = f"[{len(rounds)}, ...], as `round` has"
            raise DataError(f"{source}: {name[:80]!r} is of shape {[*shape]}. Allowed: {allowed}")


def find_problems(store: Store, run: str, results: Path | None = None) -> list[str]:
    """Return a line for each problem of a finished run: files, name, content.

    Args:
        store: The store.
        run: The run.
        results: Folder of results with partitions, to compare clients with; None: without that.
    """
    if damages := store.verify(run):
        return damages
    folder = store.folder(run)
    try:
        record = store.record(run)
        check_whole(record, Location(str(folder / RECORD)))
        check_id(record, run, str(folder))
        # Records can come from other people: no name may lead out of the run's folder.
        if unknown := sorted({*record["files"]} - {*RUN_FILES}):
            return [f"{folder}: has an unknown file {name!r}" for name in unknown]
        if METRICS not in record["files"]:
            return [f"{folder}: has no {METRICS}"]
        checked = RunRecord.from_json(record)
        source = str(folder / METRICS)
        rows = joined_metrics([store.metrics(run)], [checked], [source])
        check_rounds(rows, checked, source)
        sizes = None if results is None else _partition_sizes(checked, results)
        if sizes is not None:
            check_clients(rows, checked, sizes, source)
        if WEIGHTS in record["files"]:
            store.weights(run)
        if STATE in record["files"]:
            store.state(run)
        if PREDICTIONS in record["files"]:
            check_predictions(store.predictions(run), str(folder / PREDICTIONS))
        check_traces(store.traces(run), checked.rounds, str(folder / TRACES))
    except FedloomError as error:
        return [str(error)]
    return []
