"""Draws of a study that are trained in one stack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import planning
import pytest

from fl.cli import main
from fl.plan import plan
from fl.plan.bundle import Bundle, join, training_order
from fl.plan.plan import Plan
from fl.store.store import Store
from fl.workflow import jobs

DRAWS: dict[str, Any] = {
    "datasets": [{"synthetic": {"clients": 4, "samples": 40, "alpha": 1.0, "seed": [0, 1]}}],
    "partitions": [{"dirichlet": {"clients": 4, "alpha": 0.5, "min_samples": 5, "seed": [0, 1]}}],
    "models": [{"mlp": {"hidden": [5]}}, {"cnn": {}}],
    "seeds": [3, 4],
    "methods": {
        "ditto": {"terms": {"mk-mmd": {"layers": ["1"]}}},
        "fedavg": None,
        "tuned": {"method": "finetune", "start": "fedavg"},
    },
}


def make(root: Path, study: dict[str, Any] | None = None, **execution: Any) -> Plan:
    """The plan of a study of four draws, with its files."""
    given = {"execution": {**planning.EXECUTION, **execution}}
    config = planning.write_config(root, {**DRAWS, **(study or {})}, given)
    found = plan.make(config)
    plan.write(found)
    return found


def train(root: Path, bundles: list[Bundle], store: str) -> int:
    """``python -m fl train`` in this process; its exit status."""
    files = [root / "results" / "plan" / "bundles" / f"{bundle.bundle}.json" for bundle in bundles]
    return main.main(["train", *map(str, files), "--store", str(root / store)])


def stacks(found: Plan, store: Store) -> list[Bundle]:
    return list(training_order(list(found.bundles.values()), store))


def test_draws_of_a_linear_network_are_one_stack_and_have_the_bits_of_runs_alone(
    tmp_path: Path,
) -> None:
    found = make(tmp_path, {"models": [{"mlp": {"hidden": [5]}}]})
    bundles, together, alone = [*found.bundles.values()], Store(tmp_path / "a"), "b"
    assert [len(stack.runs) for stack in stacks(found, together)] == [8, 8, 8]
    assert "and 3 more draws" in stacks(found, together)[0].title
    assert train(tmp_path, bundles, "a") == 0
    for bundle in sorted(bundles, key=lambda bundle: len(bundle.after)):
        assert train(tmp_path, [bundle], alone) == 0
    for run in found.runs:
        folders = [tmp_path / store / run for store in ("a", "b")]
        files = [
            {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "run.json"}
            for folder in folders
        ]
        assert files[0] == files[1]
        records = [Store(tmp_path / store).record(run) for store in ("a", "b")]
        assert len(records[0]["execution"]["stack"]) == 8
        assert len(records[1]["execution"]["stack"]) == 2
        assert records[0]["costs"] == records[1]["costs"]


def test_a_killed_stack_of_draws_goes_on_with_equal_bytes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = make(tmp_path, {"models": [{"mlp": {"hidden": [5]}}], "methods": {"fedavg": None}})
    bundles = [*found.bundles.values()]
    assert train(tmp_path, bundles, "whole") == 0
    with planning.signalled(3):
        assert train(tmp_path, bundles, "killed") == 75
    with caplog.at_level("INFO"):
        assert train(tmp_path, bundles, "killed") == 0
    assert "resumed after round 3" in caplog.text
    whole, killed = Store(tmp_path / "whole"), Store(tmp_path / "killed")
    for run in found.runs:
        assert whole.metrics(run).equals(killed.metrics(run))


@pytest.mark.parametrize(
    ("study", "execution"),
    [
        ({"models": [{"cnn": {}}]}, {}),
        ({"models": [{"mlp": {"norm": "batch"}}]}, {}),
        ({"training": {**planning.STUDY["training"], "arithmetic": "native"}}, {}),
        ({}, {"backend": "loop"}),
        ({}, {"processes": 2}),
    ],
)
def test_draws_whose_bits_depend_on_their_stack_are_trained_apart(
    tmp_path: Path, study: dict[str, Any], execution: dict[str, Any]
) -> None:
    data = {"datasets": ["digits"], "models": [{"mlp": {"hidden": [5]}}]}
    found = make(tmp_path, {**data, "methods": {"fedavg": None}, **study}, **execution)
    assert [len(stack.runs) for stack in stacks(found, Store(tmp_path / "a"))] == [2, 2]


def test_draws_that_are_held_by_another_process_are_left_to_it(tmp_path: Path) -> None:
    found = make(tmp_path, {"models": [{"mlp": {"hidden": [5]}}], "methods": {"fedavg": None}})
    store = Store(tmp_path / "a")
    [whole] = stacks(found, store)
    held = whole.runs[0]
    with store.open(held.run):
        first, second = stacks(found, store)
    assert held in second.runs and held not in first.runs
    assert {run.run for run in first.runs + second.runs} == {*found.runs}


def test_a_job_has_all_draws_of_an_entry(tmp_path: Path) -> None:
    found = make(tmp_path, {"models": [{"mlp": {"hidden": [5]}}]}, run_minutes=30)
    formed = [*jobs.form_jobs(found.bundles, Store(tmp_path / "a"), merge=True)]
    assert sorted(len(job.bundles) for job in formed) == [4, 4, 4]
    for job in formed:
        [title] = {found.bundles[name].title.split(" on ")[0] for name in job.bundles}
        assert title and len(job.partitions) == 4


def test_runs_of_other_settings_are_not_joined(tmp_path: Path) -> None:
    found = make(tmp_path, {"models": [{"mlp": {"hidden": [5]}}]})
    keys = {bundle.stack_key for bundle in found.bundles.values()}
    assert len(keys) == 3
    first, *_ = found.bundles.values()
    assert join([first]) is first
