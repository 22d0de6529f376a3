"""Which bundles become one job, and what a job says it needs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
from make_results import write_run
from planning import Planned

from fl.plan.bundle import Bundle, Run, training_order
from fl.plan.config import Execution
from fl.store.store import Store
from fl.workflow import jobs
from fl.workflow.jobs import Machine

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
        title=f"{name} on here",
        runs=[Run(f"{name}{seed}", spec, {}, []) for seed in range(runs)],
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
    return [job.bundles for job in jobs.form_jobs(bundles, store, merge)]


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
    assert [len(group) for group in found] == [3, 3, 2, 2]


def test_what_nobody_knows_is_not_merged(spec, store):
    assert [len(group) for group in formed(many(spec, 4), store)] == [1, 1, 1, 1]
    assert [len(group) for group in formed(many(spec, 4, run_minutes=1), store, False)] == [1] * 4
    assert [len(g) for g in formed(many(spec, 4, run_minutes=1, merge_minutes=0), store)] == [1] * 4


def test_thousands_of_bundles_of_unknown_length_are_a_hundred_jobs(spec, store):
    found = formed(many(spec, 4000), store)
    assert [len(group) for group in found] == [40] * 100
    assert len(formed(many(spec, 100), store)) == 100
    assert len(formed(many(spec, 300, merge_minutes=0), store)) == 300


def test_only_what_is_missing_counts(spec, store):
    names = ("b", "c")
    bundles = {name: bundle(name, spec, runs=20, run_minutes=1) for name in names}
    assert [len(group) for group in formed(bundles, store)] == [1, 1]
    for number in range(15):
        write_run(store.root, f"b{number}", [], spec={**spec, "dataset": {"name": "strange"}})
    assert formed(bundles, store) == [["b", "c"]]


def test_a_job_of_a_cluster_waits_for_whole_jobs(spec, store):
    """Chains crosswise, too long for one job."""
    bundles = {
        "a": bundle("a", spec, data="one", run_minutes=8),
        "b": bundle("b", spec, data="two", run_minutes=8),
        "c": bundle("c", spec, ["a"], data="two", run_minutes=8),
        "d": bundle("d", spec, ["b", "a", "whole"], data="one", run_minutes=8),
        "e": bundle("e", spec, ["c"], data="one", run_minutes=8),
        "f": bundle("f", spec, ["c"], data="two", run_minutes=8),
    }
    found = {tuple(job.bundles): job for job in jobs.form_jobs(bundles, store, True)}
    assert {*found} == {("a",), ("b",), ("c",), ("e", "f"), ("d",)}
    last = found["e", "f"]
    assert last.after == [found["c",].job]
    whole = sorted(found[name,].job for name in "ab")
    assert found["d",].after == whole, "what is there is not waited for"
    assert last.datasets == ["one", "two"]
    assert last.partitions == ["one-partition", "two-partition"]
    assert last.title == "e, f on here"
    assert re.fullmatch("e-f-on-here-[0-9a-f]{16}", last.job)


def test_a_job_does_not_outgrow_its_command(spec, store):
    found = formed(many(spec, 1001, run_minutes=0.001), store)
    assert [len(group) for group in found] == [334, 334, 333]


TWO = Machine(cores=2, cards=1)


def here(
    bundles: Bundles, store: Store, machine: Machine = TWO, **readers: list[str]
) -> list[list[str]]:
    return [job.bundles for job in jobs.form_jobs(bundles, store, machine, readers)]


def lengths(found: list[list[str]], bundles: Bundles) -> list[int]:
    minutes = {name: one.execution.run_minutes or 0.0 for name, one in bundles.items()}
    return [round(60 * sum(minutes[name] for name in group)) for group in found]


def test_short_work_is_shared_out_among_the_cores_once(spec, store):
    bundles = many(spec, 48, run_minutes=2.2 / 60)
    assert lengths(here(bundles, store), bundles) == [53, 53]


def test_no_job_is_shorter_than_its_start_is_worth(spec, store):
    bundles = many(spec, 48, run_minutes=1 / 60)
    assert lengths(here(bundles, store, Machine(64, 1)), bundles) == [24, 24]
    assert lengths(here(many(spec, 9, run_minutes=1 / 60), store), bundles) == [9]


def test_long_work_leaves_no_core_idle_for_long(spec, store):
    bundles = many(spec, 400, run_minutes=1)
    found = lengths(here(bundles, store), bundles)
    assert sum(found) == 400 * 60
    assert 120 <= min(found) <= max(found) <= 240, "many, of which each costs little to start"
    assert here(many(spec, 4, run_minutes=90), store) == [[name] for name in many(spec, 4)]


def test_the_longest_are_dealt_first(spec, store):
    one, other = here(
        {
            name: bundle(name, longer(spec, rounds))
            for name, rounds in {"a": 1, "b": 1, "c": 4, "d": 2}.items()
        },
        known(store, spec),
    )
    assert {frozenset(one), frozenset(other)} == {frozenset({"c"}), frozenset({"a", "b", "d"})}


def longer(spec: dict[str, Any], times: int) -> dict[str, Any]:
    training = {**spec["training"], "rounds": times * spec["training"]["rounds"]}
    return {**spec, "training": training}


def known(store: Store, spec: dict[str, Any], seconds: float = 30.0) -> Store:
    """A store in which a run like the spec is, that took so long."""
    write_run(store.root, "known", [], spec=spec, seconds=seconds)
    return store


def test_what_starts_from_a_bundle_is_trained_by_the_same_job(spec, store):
    """A job that fails then takes with it only what could not have been trained."""
    bundles = {f"a{i}": bundle(f"a{i}", spec, run_minutes=0.1) for i in range(20)}
    bundles |= {f"f{i}": bundle(f"f{i}", spec, [f"a{i}"], run_minutes=0.1) for i in range(20)}
    found = list(jobs.form_jobs(bundles, store, TWO))
    assert len(found) == 2
    assert all(job.after == [] for job in found)
    for job in found:
        for name in job.bundles:
            if name.startswith("f"):
                order = job.bundles
                assert order.index("a" + name[1:]) + 1 == order.index(name), "chain by chain"


def test_what_many_start_from_is_a_job_alone(spec, store):
    bundles = {name: bundle(name, spec, run_minutes=1) for name in ("a", "b", "c")}
    bundles |= {f"f{i}": bundle(f"f{i}", spec, ["a"], run_minutes=0.4) for i in range(40)}
    found = list(jobs.form_jobs(bundles, store, TWO))
    [alone] = [job.job for job in found if job.bundles == ["a"]]
    waiting = [job for job in found if job.after]
    assert len(waiting) > 1
    assert all(job.after == [alone] for job in waiting)
    assert sorted(name for job in waiting for name in job.bundles) == sorted(
        name for name in bundles if name.startswith("f")
    )


def test_what_another_process_is_at_comes_later_but_never_before_its_start(spec, store):
    named = [bundle("a", spec), bundle("f", spec, ["a"]), bundle("c", spec), bundle("d", spec)]
    assert [one.bundle for one in training_order(named, store)] == ["a", "f", "c", "d"]
    with store.open("a0"), store.open("c0"):
        found = training_order(named, store)
        assert next(found).bundle == "d"
        assert next(found).bundle == "a", "all that can be trained is held: they are waited for"
        assert next(found).bundle == "f"
        assert [one.bundle for one in found] == ["c"]


def test_bundles_of_other_readers_are_no_part_of_a_job(spec, store):
    bundles = many(spec, 4, run_minutes=0.1)
    found = here(bundles, store, b0000=["one"], b0001=["one"], b0002=["one", "two"], b0003=["two"])
    assert sorted(found) == [["b0000", "b0001"], ["b0002"], ["b0003"]]


def test_threads_and_cards_count(spec, store):
    def count(machine: Machine, **execution: Any) -> int:
        return len(here(many(spec, 8, run_minutes=1, **execution), store, machine))

    assert count(Machine(8, 1), threads=1) == 8
    assert count(Machine(8, 1), threads=4) == count(Machine(2, 1), threads=1) == 4
    assert count(Machine(8, 1), gpus=1) == count(Machine(1, 1), threads=1)
    assert count(Machine(8, 4), gpus=1) == count(Machine(4, 1), threads=1)


def test_no_two_jobs_of_a_machine_wait_for_one_another(spec, store):
    """Families over two kinds of jobs, and chains that are too long for one."""
    slow = {"run_minutes": 5.0}
    bundles = {
        "a": bundle("a", spec, **slow),
        "b": bundle("b", spec, gpus=1, **slow),
        "c": bundle("c", spec, ["a"], gpus=1, **slow),
        "d": bundle("d", spec, ["b"], **slow),
        "e": bundle("e", spec, ["c", "d"], **slow),
        "g": bundle("g", spec, ["e"], **slow),
    }
    found = {job.job: set(job.after) for job in jobs.form_jobs(bundles, store, TWO)}
    TopologicalSorter(found).prepare()
    home = {name: job.job for job in jobs.form_jobs(bundles, store, TWO) for name in job.bundles}
    for name, one in bundles.items():
        for start in one.after:
            assert home[start] == home[name] or home[start] in found[home[name]]
