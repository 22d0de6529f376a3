"""Dataclasses that are written as JSON and read again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from fl.base.dataclass_json import as_json, from_json
from fl.store.run_record import Costs, RunRecord, UnknownCosts


@dataclass(frozen=True)
class Node:
    name: str
    cpus: int | None = None


@dataclass(frozen=True)
class Cluster:
    nodes: tuple[Node, ...]
    by_name: dict[str, Node]
    groups: list[list[Node]] = field(default_factory=list)
    head: Node | None = None
    lengths: tuple[int, ...] = ()


CLUSTER = Cluster((Node("a", 2), Node("b")), {"c": Node("c")}, [[Node("d")]], Node("e"), (1, 2))


def test_nested_dataclasses_are_read_as_they_were_written() -> None:
    text = json.dumps(as_json(CLUSTER))
    assert json.loads(text)["by_name"] == {"c": {"name": "c", "cpus": None}}
    assert from_json(Cluster, json.loads(text)) == CLUSTER


def test_keys_of_a_later_version_are_left_out_and_missing_ones_have_defaults() -> None:
    content = {"nodes": [{"name": "a", "gpus": 1}], "by_name": {}, "power": 3}
    assert from_json(Cluster, content) == Cluster((Node("a"),), {})


def test_costs_are_those_that_were_measured_or_the_reason_why_they_are_unknown() -> None:
    plain = {"run": "r", "state": "complete", "rounds": 1, "seconds": 1.0}
    plain |= {"execution": {"backend": "loop"}}
    for costs in (UnknownCosts("no memory"), Costs(), Costs(clients=3)):
        record = RunRecord.from_json(plain | {"costs": as_json(costs)})
        assert record.costs == costs
        assert RunRecord.from_json(as_json(record)) == record
    assert RunRecord.from_json(plain | {"costs": None}).costs == Costs()
