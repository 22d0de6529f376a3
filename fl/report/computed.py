"""The columns of the runs table on how a run was computed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fl.store.store import Store


def columns(record: Mapping[str, Any] | None, store: Store) -> dict[str, Any]:
    """Those of `fl.report.tables.RUN_COLUMNS` that are in ``run.json``; none for a missing run."""
    if record is None:
        return {}
    execution = record.get("execution", {})
    return {
        "rounds": record.get("rounds"),
        "rounds_before": _before(record, store),
        "seconds": record.get("seconds"),
        "stack": ", ".join(execution.get("stack") or [record["run"]]),
        "backend": execution.get("backend"),
        "device": execution.get("device"),
    } | _costs(record.get("costs") or {})


def _costs(told: Mapping[str, Any]) -> dict[str, Any]:
    """The costs that `fl.train.costs` measured; nothing for a run without them."""
    if "traffic" not in told:
        return {}
    names = ("participants", "bytes_down", "bytes_up", "flops", "state_client", "state_server")
    found = {name: told[name] for name in names} | {"traffic": json.dumps(told["traffic"])}
    return found | {"flops_server": told.get("flops_server")}


def _before(record: Mapping[str, Any], store: Store) -> int | None:
    """The rounds of all earlier runs in the chain of runs that a run starts from."""
    rounds, start = 0, record.get("start")
    while start is not None:
        if not store.has(start):
            return None
        found = store.record(start)
        rounds, start = rounds + found["rounds"], found.get("start")
    return rounds
