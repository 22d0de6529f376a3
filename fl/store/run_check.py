"""Whether what lies in a store is a run: checks of its record and its numbers.

Hashes show that files are as they were written, not that their content ever made sense. These
checks hold for every run that Fedloom computes. A run that fails one comes from elsewhere or from a
broken machine, and no table may contain its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fl.base import fields
from fl.base.errors import ConfigError, DataError, Where
from fl.base.fields import Bound, Count, Index, NonNegative, Positive, Seed
from fl.base.schema import GLOBAL, METRIC_COLUMNS, PERSONAL, SHARES, SPLITS, UNSEEN

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from torch import Tensor

LARGEST = 2**31 - 1
"""Of rounds and clients: tables have 32 bits for them."""

RANGES = {"round": (0, None), "client": (0, LARGEST), "n": (1, 2**63 - 1)}
"""By column, its least and its largest number; None: the run's last round."""

WORDS = {"split": (*SPLITS, UNSEEN), "stage": (GLOBAL, PERSONAL)}
KEY = [name for name in METRIC_COLUMNS if name not in ("value", "n")]


@dataclass(frozen=True)
class _Named:
    name: str


@dataclass(frozen=True)
class _Training:
    rounds: Count
    lr: Positive


@dataclass(frozen=True)
class _Spec:
    dataset: dict[str, Any]
    partition: dict[str, Any]
    model: dict[str, Any]
    method: dict[str, Any]
    training: dict[str, Any]
    terms: list[dict[str, Any]]
    seed: Seed
    start: str | None = None
    test: Literal["own", "global", "reweighted"] = "own"
    train_on: str | Count | None = None
    alterations: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class _Execution:
    backend: str
    device: str | None = None


Size = Annotated[int, Bound(low=0, limit=2**63 - 1)]
"""Bytes, as a table has room for them."""


@dataclass(frozen=True)
class _Costs:
    participants: Count
    traffic: list[list[Size]]
    bytes_down: NonNegative
    bytes_up: NonNegative
    flops: NonNegative
    state_client: Size
    state_server: Size
    flops_server: NonNegative = 0.0


@dataclass(frozen=True)
class _Record:
    state: Literal["complete", "diverged"]
    rounds: Index
    seconds: NonNegative
    execution: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)
    costs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Whole:
    run: str
    spec: dict[str, Any]
    code: dict[str, str]
    code_files: dict[str, str] = field(default_factory=dict)
    start: str | None = None
    note: str = ""


_declared = cache(fields.fields)
"""A plan has thousands of bundles, and their fields are asked for each time."""


def shaped(target: type, given: Any, where: Where) -> dict[str, Any]:
    """The declared fields of ``target``, checked as by `fl.base.fields.parse`; other keys are
    ignored.

    Another version of Fedloom may write more keys.
    """
    found, made = fields.mapping(given, where), {}
    for name, one in _declared(target).items():
        if name in found:
            made[name] = fields.value(one.hint, found[name], where / name)
        elif one.default is fields.REQUIRED:
            raise ConfigError(where / name, "is missing", fields.describe(one.hint))
        else:
            made[name] = one.default
    return made


def check_named(given: Any, where: Where) -> None:
    """Refuse (`ConfigError`) what does not begin ``{"name": ...}``."""
    shaped(_Named, given, where)


def check_spec(given: Any, where: Where) -> None:
    """Refuse (`ConfigError`) what is not the spec of a run; names in it need not be known."""
    spec = shaped(_Spec, given, where)
    for key in ("dataset", "partition", "model", "method"):
        check_named(spec[key], where / key)
    for key in ("terms", "alterations"):
        for i, one in enumerate(spec[key]):
            check_named(one, where / key / i)
    shaped(_Training, spec["training"], where / "training")


def check_record(record: Mapping[str, Any], where: Where) -> None:
    """Refuse (`ConfigError`) a record from which no table can be made."""
    known = shaped(_Record, record, where)
    shaped(_Execution, known["execution"], where / "execution")
    if known["rounds"] > LARGEST:
        raise ConfigError(where / "rounds", f"is {known['rounds']}", f"{LARGEST} at most")
    if known["costs"] and "unknown" not in known["costs"]:
        _check_costs(known["costs"], where / "costs")


def _check_costs(given: Any, where: Where) -> None:
    costs = shaped(_Costs, given, where)
    for i, stretch in enumerate(costs["traffic"]):
        if len(stretch) != 3:
            raise ConfigError(where / "traffic" / i, f"is {stretch}", "rounds, bytes down and up")


def check_whole(record: Mapping[str, Any], where: Where) -> None:
    """Refuse (`ConfigError`) a record that does not name its run, or that is incomplete."""
    check_record(record, where)
    known = shaped(_Whole, record, where)
    check_spec(known["spec"], where / "spec")
    planned, done = known["spec"]["training"]["rounds"], record["rounds"]
    if done > planned or (done < planned and record["state"] == "complete"):
        raise ConfigError(where / "rounds", f"is {done}", f"{planned}, as the spec says")


def check_metrics(rows: pd.DataFrame, record: Mapping[str, Any], source: str) -> None:
    """Check that the rows are such as a run writes; raises as `joined_metrics`."""
    joined_metrics([rows], [record], [source])


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
    rows = pd.concat([part[list(METRIC_COLUMNS)] for part in parts], ignore_index=True)
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    last = np.array([record["rounds"] for record in records])
    diverged = np.array([record["state"] == "diverged" for record in records])
    for bad, told in _faults(rows, owner, last[owner], diverged[owner]):
        for place in np.flatnonzero(bad)[:1]:
            whose = owner[place]
            raise _wrong(sources[whose], *told(rows.loc[place], last[whose]))
    ends = rows["round"].groupby(owner).max().to_numpy()
    for i in np.flatnonzero(ends != last)[:1]:
        raise _wrong(sources[i], f"ends after round {ends[i]}", f"round {last[i]}, the last")
    return rows


def check_traces(traces: Mapping[str, Tensor], record: Mapping[str, Any], source: str) -> None:
    """Check that the traces are such as a run writes.

    ``round`` must hold, in ascending order, the round of each entry of all others.

    Raises:
        DataError: For the first thing that is wrong; its message begins with ``source``.
    """
    if not traces:
        return
    if "round" not in traces:
        raise _wrong(source, f"has {', '.join(sorted(traces))[:200]}", "a `round` beside them")
    shapes = {name: tuple(getattr(found, "shape", ())) for name, found in traces.items()}
    if str(getattr(traces["round"], "dtype", "")) != "torch.int64" or len(shapes["round"]) != 1:
        raise _wrong(source, "round is of another shape or kind", "int64, [rounds evaluated]")
    rounds = traces["round"].tolist()
    if rounds != sorted({*rounds}) or not all(1 <= one <= record["rounds"] for one in rounds):
        allowed = f"rising numbers from 1 to {record['rounds']}"
        raise _wrong(source, f"round is {str(rounds)[:100]}", allowed)
    for name, shape in shapes.items():
        if shape[:1] != (len(rounds),):
            allowed = f"[{len(rounds)}, ...], as `round` has"
            raise _wrong(source, f"{name[:80]!r} is of shape {[*shape]}", allowed)


def _check_kinds(rows: pd.DataFrame, source: str) -> None:
    from pandas.api import types

    if not len(rows.columns) or not set(METRIC_COLUMNS) <= set(rows.columns):
        found = ", ".join(map(str, rows.columns)) or "none"
        raise _wrong(source, f"has the columns {found}", ", ".join(METRIC_COLUMNS))
    kinds = {
        **dict.fromkeys(("round", "client", "n"), (types.is_integer_dtype, "whole numbers")),
        **dict.fromkeys(("split", "stage", "metric"), (types.is_string_dtype, "text")),
        "value": (types.is_float_dtype, "numbers"),
    }
    for name, (is_kind, allowed) in kinds.items():
        column = rows[name]
        if not is_kind(column.dtype) or (name != "value" and column.isna().any()):
            raise _wrong(source, f"column {name!r} is {column.dtype}", f"{allowed}, no empty cell")
    if rows.empty:
        raise _wrong(source, "has no rows", "a row for each client, round and metric")


Told = Callable[["pd.Series[Any]", int], tuple[str, str]]
"""From a row and its run's last round, what is wrong and what is allowed."""


def _faults(
    rows: pd.DataFrame, owner: np.ndarray, last: np.ndarray, diverged: np.ndarray
) -> Iterator[tuple[pd.Series[bool], Told]]:
    """Which rows have each kind of fault. By row: its run, that run's last round, whether it
    diverged; only values of a diverged run may be infinite or NaN.
    """
    for name, (low, high) in RANGES.items():
        over = rows[name] > (last if high is None else high)
        yield over | (rows[name] < low), partial(_out_of_range, name)
    for name, allowed in WORDS.items():
        yield ~rows[name].isin(allowed), partial(_unknown, name)
    value, share = rows["value"], rows["metric"].isin(SHARES)
    infinite = value.isna() | value.abs().eq(float("inf"))
    yield (share & ~value.between(0, 1) & ~infinite) | (infinite & ~diverged), _impossible
    yield rows[KEY].assign(owner=owner).duplicated(), _twice


def _out_of_range(name: str, row: pd.Series[Any], last: int) -> tuple[str, str]:
    low, high = RANGES[name]
    return f"{name} is {row[name]}", f"{low} to {last if high is None else high}"


def _unknown(name: str, row: pd.Series[Any], last: int) -> tuple[str, str]:
    return f"{name} is {row[name]!r}", ", ".join(WORDS[name])


def _impossible(row: pd.Series[Any], last: int) -> tuple[str, str]:
    said = f"{row['metric']} of client {row['client']} after round {row['round']}"
    return f"{said} is {row['value']}", "0 to 1" if row["metric"] in SHARES else "a finite number"


def _twice(row: pd.Series[Any], last: int) -> tuple[str, str]:
    return f"has two rows of {', '.join(f'{name} {row[name]}' for name in KEY)}", "one"


def _wrong(source: str, problem: str, allowed: str) -> DataError:
    return DataError(f"{source}: {problem}; allowed: {allowed}")
