"""Whether what lies in a store is a run: checks of its record and its numbers.

Hashes show that files are as they were written, not that their content ever made sense. These
checks hold for every run that Fedloom computes. A run that fails one comes from elsewhere or from a
broken machine, and no table may contain its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args, get_origin

from fl.base import fields, identity
from fl.base.errors import ConfigError, DataError, Location
from fl.base.fields import Bound, Count, Index, NonNegative, Seed
from fl.base.schema import GLOBAL, METRIC_COLUMNS, PERSONAL, SHARES, SPLITS, UNSEEN
from fl.store.layout import is_name

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from torch import Tensor

LARGEST = 2**31 - 1
"""Of rounds and clients: tables have 32 bits for them."""

WORDS = {"split": (*SPLITS, UNSEEN), "stage": (GLOBAL, PERSONAL)}
KEY = [name for name in METRIC_COLUMNS if name not in ("value", "n")]
KINDS = {
    **dict.fromkeys(("round", "client", "n"), ("iu", "whole numbers")),
    **dict.fromkeys(("split", "stage", "metric"), ("", "text")),
    "value": ("f", "numbers"),
}
"""By column, the kinds of its type as numpy calls them, "" for text, and in words."""


@dataclass(frozen=True)
class _Named:
    name: str


@dataclass(frozen=True)
class _Training:
    rounds: Count


@dataclass(frozen=True)
class _Spec:
    dataset: _Named
    partition: _Named
    model: _Named
    method: _Named
    training: _Training
    terms: list[_Named]
    seed: Seed
    start: str | None = None
    test: Literal["own", "global", "reweighted"] = "own"
    train_on: str | Count | None = None
    alterations: list[_Named] = field(default_factory=list)
    wire: list[_Named] = field(default_factory=list)
    aggregation: list[_Named] = field(default_factory=list)


@dataclass(frozen=True)
class _Execution:
    backend: str
    device: str | None = None
    stack: list[str] | None = None
    stretches: list[dict[str, Index]] = field(default_factory=list)


@dataclass(frozen=True)
class _Costs:
    clients: Index | None = None
    participants: Index | None = None
    traffic: list[list[NonNegative]] = field(default_factory=list)
    bytes_down: NonNegative | None = None
    bytes_up: NonNegative | None = None
    flops: NonNegative | None = None
    flops_server: NonNegative | None = None
    memory_client: Index | None = None
    state_client: Index | None = None
    state_server: Index | None = None


@dataclass(frozen=True)
class _Computed:
    """What tables have of a record."""

    run: str
    state: Literal["complete", "diverged"]
    rounds: Annotated[int, Bound(low=0, high=LARGEST)]
    seconds: NonNegative
    execution: _Execution
    versions: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str | bool | None] = field(default_factory=dict)
    costs: _Costs = field(default_factory=_Costs)
    start: str | None = None


@dataclass(frozen=True)
class _Whole(_Computed):
    spec: _Spec = field(kw_only=True)
    code: dict[str, str] = field(kw_only=True)
    code_files: dict[str, str] = field(default_factory=dict)
    defaults: list[str] = field(default_factory=list)
    note: str = ""


_declared = cache(fields.fields)


def _known(hint: Any, given: Any) -> Any:
    """What is given for a dataclass, without keys that it does not declare: another version of
    Fedloom may write more.
    """
    if is_dataclass(hint) and isinstance(given, Mapping):
        declared = _declared(cast(type, hint))
        return {k: _known(declared[k].hint, given[k]) for k in given if k in declared}
    if get_origin(hint) is list and isinstance(given, list):
        return [_known(get_args(hint)[0], item) for item in given]
    return given


def check_shape(record: Mapping[str, Any], location: Location) -> None:
    """Refuse (`ConfigError`) what does not have the keys of a run's record; names in its spec need
    not be known.
    """
    fields.parse(_Whole, _known(_Whole, record), location)


def check_record(record: Mapping[str, Any], location: Location) -> None:
    """Refuse (`ConfigError`) a record from which no table can be made."""
    fields.parse(_Computed, _known(_Computed, record), location)
    start = record.get("start")
    if start is not None and (start == record["run"] or not is_name(start)):
        raise ConfigError(location / "start", f"is {start[:100]!r}", "the name of another run")


def check_whole(record: Mapping[str, Any], location: Location) -> None:
    """Refuse (`ConfigError`) a record that is incomplete, or whose parts do not fit each other."""
    check_record(record, location)
    check_shape(record, location)
    spec, done = record["spec"], record["rounds"]
    planned = spec["training"]["rounds"]
    early = record["state"] != "complete" or spec["training"].get("early_stopping") is not None
    if done > planned or (done < planned and not early):
        raise ConfigError(location / "rounds", f"is {done}", f"{planned}, as the spec says")
    trained_on = spec.get("train_on")
    start = trained_on if isinstance(trained_on, str) else None
    if spec.get("start") is not None:
        start = identity.run_id(spec["start"], spec["seed"])
    if record.get("start") != start:
        # What is bound by hashes cannot go round in a circle.
        raise ConfigError(
            location / "start", f"is {record.get('start')!r}", f"{start}, as in the spec"
        )


def check_id(record: Mapping[str, Any], run: str, source: str) -> None:
    """Refuse (`DataError`) a record of another run than ``run``; ids are computed again from spec
    and code, so that no edit of either keeps its name.
    """
    try:
        point = identity.point_id(record["spec"], record["code"], record.get("defaults", ()))
        named = identity.run_id(point, record["spec"]["seed"])
    except (KeyError, TypeError, ValueError, RecursionError, AttributeError) as error:
        raise DataError(f"{source}: its record has what no spec has ({error})") from error
    if not named == run == record["run"]:
        raise DataError(f"{source}: is, by what its record says, run {named}")


def joined_metrics(
    parts: Sequence[pd.DataFrame], records: Sequence[Mapping[str, Any]], sources: Sequence[str]
) -> pd.DataFrame:
    """The rows of one run or more, one run after another, if they are such as runs write.

    Checked in this order: columns, types, numbers out of range, unknown words, values that are not
    finite or not shares, duplicate rows, rounds that are missing at the end. Runs are checked all
    at once, as one after another takes several times as long where they are short.

    Raises:
        DataError: For the first thing that is wrong; its message begins with the run's source.
    """
    import numpy as np
    import pandas as pd

    for rows, source in zip(parts, sources, strict=True):
        _check_kinds(rows, source)
    rows = pd.concat([frame[list(METRIC_COLUMNS)] for frame in parts], ignore_index=True)
    owner = np.repeat(np.arange(len(parts)), [len(frame) for frame in parts])
    last = np.array([record["rounds"] for record in records])
    diverged = np.array([record["state"] == "diverged" for record in records])
    for problem, bad in _faults(rows, owner, last[owner], diverged[owner]):
        for place in np.flatnonzero(bad)[:1]:
            row = ", ".join(f"{name} {value}" for name, value in rows.loc[place].items())
            raise DataError(f"{sources[owner[place]]}: {problem}; the row: {row}")
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


def _faults(
    rows: pd.DataFrame, owner: np.ndarray, last: np.ndarray, diverged: np.ndarray
) -> Iterator[tuple[str, pd.Series[bool]]]:
    """Each kind of fault, and which rows have it. By row: its run, that run's last round, whether
    it diverged; only values of a diverged run may be infinite or NaN.
    """
    yield "round is not from 0 to the run's last", (rows["round"] < 0) | (rows["round"] > last)
    yield f"client is not from 0 to {LARGEST}", ~rows["client"].between(0, LARGEST)
    yield "n is less than 1", rows["n"] < 1
    for name, allowed in WORDS.items():
        yield f"{name} is none of {', '.join(allowed)}", ~rows[name].isin(allowed)
    value, share = rows["value"], rows["metric"].isin(SHARES)
    infinite = value.isna() | value.abs().eq(float("inf"))
    yield "value is not finite", infinite & ~diverged
    yield "value is not from 0 to 1", share & ~value.between(0, 1) & ~infinite
    yield f"two rows have one {', '.join(KEY)}", rows[KEY].assign(owner=owner).duplicated()


def check_predictions(seen: pd.DataFrame, source: str) -> None:
    """Check (`DataError`) the columns of predictions, see `fl.engine.predictions`."""
    from pandas.api import types

    texts, numbers = ("stage", "split"), ("client", "sample", "label", "predicted")
    scores = [name for name in seen.columns if name not in (*texts, *numbers)]
    whole = [*texts, *numbers, *(f"score_{k}" for k in range(len(scores)))]
    if [*seen.columns] != whole or not scores:
        raise DataError(f"{source}: has other columns than {', '.join(whole)}")
    fits = all(types.is_string_dtype(seen[name]) for name in texts)
    fits &= all(types.is_integer_dtype(seen[name]) for name in numbers)
    if not fits or not all(types.is_float_dtype(seen[name]) for name in scores):
        raise DataError(f"{source}: has a column of another type. Allowed: text, numbers, scores")


def check_traces(traces: Mapping[str, Tensor], record: Mapping[str, Any], source: str) -> None:
    """Check that the traces are such as a run writes.

    ``round`` must hold, in ascending order, the round of each entry of all others.

    Raises:
        DataError: For the first thing that is wrong; its message begins with ``source``.
    """
    if not traces:
        return
    shapes = {name: tuple(getattr(trace, "shape", ())) for name, trace in traces.items()}
    count = shapes.get("round", ())
    if len(count) != 1 or str(getattr(traces["round"], "dtype", "")) != "torch.int64":
        raise DataError(f"{source}: round is missing or no list. Allowed: int64 [rounds evaluated]")
    rounds = traces["round"].tolist()
    if rounds != sorted({*rounds} & {*range(1, record["rounds"] + 1)}):
        allowed = f"rising numbers from 1 to {record['rounds']}"
        raise DataError(f"{source}: round is {str(rounds)[:100]}. Allowed: {allowed}")
    for name, shape in shapes.items():
        if shape[:1] != count:
            allowed = f"[{len(rounds)}, ...], as `round` has"
            raise DataError(f"{source}: {name[:80]!r} is of shape {[*shape]}. Allowed: {allowed}")
