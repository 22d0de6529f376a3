"""Which bundles become one job, and what a job says it needs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from make_results import write_run
from planning import Planned

from fl.planning import jobs
from fl.planning.bundle import Bundle, Member
from fl.store.store import Store
from fl.study.config import Execution

Bundles = dict[str, Bundle]


@pytest.fixture
def spec(planned: Callable[..., Planned]) -> dict[str, Any]:
    """The spec of a run that can be costed."""
    return dict(planned().bundle("fedavg")["runs"][0]["spec"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


def bundle(
    name: str,
    spec: dict[str, Any],
    after: Iterable[str] = (),
    data: str = "data",
    runs: int = 1,
    **execution: Any,
) -> Bundle:
    return Bundle(
        bundle=name,
        title=f"Bundle {name}",
        runs=[Member(f"{name}{seed}", spec, {}, None, False) for seed in range(runs)],
        dataset=data,
        partition=f"{data}-partition",
        after=list(after),
        results="results",
        data="data",
        sources={},
        lock="sources.lock.json",
        plugins=[],
        execution=Execution(**execution),
    )


def formed(bundles: Bundles, store: Store, merge: bool = True) -> list[list[str]]:
    return [job["bundles"] for job in jobs.form(bundles, store, merge)]


def many(spec: dict[str, Any], count: int, **execution: Any) -> Bundles:
    names = [f"b{number:04}" for number in range(count)]
    return {name: bundle(name, spec, **execution) for name in names}


def test_thousands_of_minutes_become_tens_of_jobs(spec, store):
    found = formed(many(spec, 3000, run_minutes=1, merge_minutes=60), store)
    assert [len(group) for group in found] == [60] * 50
    assert sorted(itertools.chain(*found)) == sorted(many(spec, 3000))


def test_measured_times_count_more_than_a_guess(spec, store):
    write_run(store.root, "known", [], spec=spec, seconds=600.0)
    found = formed(many(spec, 10, run_minutes=0.01), store)
    assert [len(group) for group in found] == [3, 3, 3, 1]


def test_what_nobody_knows_is_not_merged(spec, store):
    assert [len(group) for group in formed(many(spec, 4), store)] == [1, 1, 1, 1]
    assert [len(group) for group in formed(many(spec, 4, run_minutes=1), store, False)] == [1] * 4
    assert [len(g) for g in formed(many(spec, 4, run_minutes=1, merge_minutes=0), store)] == [1] * 4


def test_only_what_is_missing_counts(spec, store):
    names = ("b", "c")
    bundles = {name: bundle(name, spec, runs=20, run_minutes=1) for name in names}
    assert [len(group) for group in formed(bundles, store)] == [1, 1]
    for number in range(15):
        write_run(store.root, f"b{number}", [], spec={**spec, "dataset": {"name": "strange"}})
    assert formed(bundles, store) == [["b", "c"]]


def test_a_job_is_not_longer_than_a_job_may_be(spec, store):
    found = formed(many(spec, 20, run_minutes=1, merge_minutes=60, minutes=10), store)
    assert [len(group) for group in found] == [10, 10]


def test_only_bundles_that_ask_for_the_same_are_merged(spec, store):
    bundles = {
        "a": bundle("a", spec, run_minutes=1),
        "b": bundle("b", spec, run_minutes=1, gpus=1),
        "c": bundle("c", spec, run_minutes=1),
    }
    assert sorted(formed(bundles, store)) == [["a", "c"], ["b"]]


def test_no_two_jobs_wait_for_one_another(spec, store):
    """Chains crosswise: merged without a look at them, two jobs would each wait for the other."""
    bundles = {
        "a": bundle("a", spec, data="one", run_minutes=1),
        "b": bundle("b", spec, data="two", run_minutes=1),
        "c": bundle("c", spec, ["a"], data="two", run_minutes=1),
        "d": bundle("d", spec, ["b", "whole"], data="one", run_minutes=1),
        "e": bundle("e", spec, ["c"], data="one", run_minutes=1),
    }
    found = list(jobs.form(bundles, store, True))
    assert [job["bundles"] for job in found] == [["a", "b"], ["d", "c"], ["e"]]
    first, second, third = found
    assert first["after"] == []
    assert second["after"] == [first["job"]], "what is whole is not waited for"
    assert third["after"] == [second["job"]]
    assert third["job"] == "e", "a bundle alone gives its name"
    assert second["datasets"] == ["one", "two"]
    assert second["partitions"] == ["one-partition", "two-partition"]
    assert second["title"] == "Bundle d and 1 more"


def test_a_job_does_not_outgrow_its_command(spec, store):
    found = formed(many(spec, 1001, run_minutes=0.001), store)
    assert [len(group) for group in found] == [500, 500, 1]
