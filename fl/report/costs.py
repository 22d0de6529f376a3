"""The costs of methods: bytes between server and clients, operations, and state that is kept."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from fl.base.units import operations, size
from fl.report import derived
from fl.report.cells import NOTHING, Cell, Table
from fl.report.content import NAN, by_setting, grouped
from fl.report.facts import Facts
from fl.report.pace import TIMED, earlier, reached

COLUMNS = {"bytes_down": size, "bytes_up": size, "total": size, "flops": operations}
SERVER = {"flops_server": operations}
STATE = {"state_client": size, "state_server": size}
WORKS = "; the server's are those of distillation and the like, not of means"


def costs_table(facts: Facts) -> Table | None:
    """Costs by client and round, and the bytes of all clients until `TIMED` of each final value."""
    each = spent(facts)
    if each.empty:
        return None
    distils = bool((each["flops_server"] > 0).any())
    server = SERVER if distils else {}
    shown: dict[str, Callable[[float], str]] = {**COLUMNS, **server, **STATE}

    def cells(row: pd.Series, link: str) -> Sequence[Cell]:
        mine = each[(each[derived.KEY] == list(row[derived.KEY])).all(axis=1)]
        return [_cell(mine[column], text, link) for column, text in shown.items()]

    percent = f"{100 * TIMED:g} %"
    caption = (
        "What it costs. Bytes that a participant receives and sends in a round, and operations of "
        "its work in it: means over rounds and clients. In total: bytes down and up of all "
        f"participants until the mean over clients is {percent} of the method's own final value; a "
        "method that starts from a stored model counts the bytes of that model's training too. "
        "Bytes are those of weights and whatever else goes out and comes back, uncompressed; "
        "operations those of matrix products and convolutions, forward and backward"
        f"{WORKS if distils else ''}. State: what a client keeps between rounds, and what the "
        "server keeps. Means over seeds."
    )
    columns = (
        "down a client\nand round",
        "up a client\nand round",
        f"in total\nto {percent}",
        "operations a client\nand round",
        *(["operations of\nthe server\na round"] if distils else []),
        "state of\na client",
        "state of\nthe server",
    )
    order = list(facts.methods)
    rows = (
        each[derived.KEY].drop_duplicates().sort_values("method", key=lambda m: m.map(order.index))
    )
    return by_setting(facts, "costs", caption, columns, grouped(facts, rows, cells))


def spent(facts: Facts) -> pd.DataFrame:
    """A row for each followed run whose costs are known, with the ``total`` bytes until `TIMED`.

    NaN if a run never gets there, or if the costs of the runs it starts from are not known.
    """
    if "traffic" not in facts.runs:  # Tables of an older version.
        return pd.DataFrame()
    each = reached(facts)
    told = facts.runs[facts.runs["traffic"].notna()].drop_duplicates("run").set_index("run")
    each = each[each["run"].isin(told.index)] if len(each) else each
    if each.empty:
        return pd.DataFrame()
    before, behind = earlier(facts), _starts(facts)
    by_run = told[["rounds", "traffic", "participants"]].to_dict("index")
    totals = []
    for run, rounds in zip(each["run"], each[str(TIMED)], strict=True):
        total = _total(by_run[run], rounds - before[run][0])
        for start in behind.get(run, []):
            total += _total(by_run[start], math.inf) if start in by_run else NAN
        totals.append(total)
    names = ["bytes_down", "bytes_up", "flops", *SERVER, *STATE]
    told = told.reindex(columns=[*told, *(name for name in SERVER if name not in told)])
    known = told.loc[each["run"], names].astype("float64")
    return pd.concat(
        [
            each[[*derived.KEY, "run"]].reset_index(drop=True),
            known.reset_index(drop=True),
            pd.Series(totals, name="total", dtype="float64"),
        ],
        axis=1,
    )


def _starts(facts: Facts) -> dict[str, list[str]]:
    """By run, the chain of runs whose models it starts from."""
    starts, found = {run["run"]: run.get("start") for run in facts.plan["runs"]}, {}
    for run in starts:
        found[run], start = list[str](), starts[run]
        while start:
            found[run].append(start)
            start = starts.get(start)
    return found


def _total(run: Mapping[Any, Any], rounds: float) -> float:
    """Bytes of all participants over the first ``rounds``, which may be more than there are."""
    if math.isnan(rounds):
        return NAN
    total, left = 0.0, min(rounds, float(run["rounds"]))
    for count, down, up in json.loads(run["traffic"]):
        total += min(count, left) * (down + up)
        left = max(0.0, left - count)
    return total * int(run["participants"])


def _cell(values: pd.Series, text: Callable[[float], str], link: str) -> Cell:
    there = values.dropna()
    if there.empty:
        return Cell(NOTHING)
    remark = f"{len(there)} of {len(values)} seeds" if len(there) < len(values) else ""
    exact = f"{there.mean():,.0f}"
    return Cell(text(float(there.mean())), link, remark=remark, exact=exact)
