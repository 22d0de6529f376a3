"""Runs of nonsense whose hashes are right: verified as damaged, and in no table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import make_results
import pandas as pd
import pytest
import shelving

from fl.base import files
from fl.base.errors import FedloomError
from fl.cli import run_table
from fl.cli.explain import explain
from fl.engine.evaluate import metrics_table
from fl.report import tables
from fl.store import run_check
from fl.store.store import Store

Edit = Callable[[pd.DataFrame], Any]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


def rewrite(store: Store, run: str, rows: Any = None, /, **record: Any) -> None:
    """Give a run other rows (a frame or bytes) or other entries in its record, rightly sealed."""
    folder = store.root / run
    if isinstance(rows, bytes):
        (folder / "metrics.parquet").write_bytes(rows)
    elif rows is not None:
        files.write_table(folder / "metrics.parquet", rows)
    known = {k: v for k, v in store.record(run).items() if k != "files"}
    said = {key: value for key, value in {**known, **record}.items() if value != "left out"}
    files.write_sealed(folder / "run.json", said, files=("metrics.parquet",))


def rows(**changes: Any) -> pd.DataFrame:
    """Accuracies of two clients after the last round, some cells of which are changed."""
    made = metrics_table([(50, c, "test", "global", "accuracy", 0.5, 10) for c in range(2)])
    return made.assign(**changes)


ROWS: dict[str, tuple[Edit, str]] = {
    "accuracy above 1": (
        lambda t: t.assign(value=5.0),
        "value is not from 0 to 1; the row: round 50, client 0",
    ),
    "no number": (lambda t: t.assign(value=float("nan")), "value is not finite"),
    "no value": (lambda t: t.drop(columns="value"), "Allowed: round, client, split"),
    "half a round": (lambda t: t.assign(round=0.5), "column 'round' is float64"),
    "client": (lambda t: t.assign(client=[-1, 0]), "client is not from 0 to"),
    "split": (lambda t: t.assign(split="dev"), "split is none of train, val, test, unseen"),
    "twice": (lambda t: t.assign(client=0), "two rows have one round, client"),
    "early end": (lambda t: t.assign(round=3), "ends after round 3. Allowed: round 50"),
    "empty": (lambda t: t[:0], "has no rows"),
    "cut": (lambda t: t.to_parquet()[:-20], "cannot be read as Parquet"),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_no_run_writes(store: Store, name: str) -> None:
    run = shelving.add(store)
    assert run_check.find_problems(store, run) == []
    rewrite(store, run, rows())
    assert run_check.find_problems(store, run) == []
    edit, problem = ROWS[name]
    rewrite(store, run, edit(rows()))
    assert store.verify(run) == [], "the hashes are right"
    [said] = run_check.find_problems(store, run)
    assert f"{run}/metrics.parquet: " in said and problem in said
    plan = make_results.plan([make_results.entry(run, "fedavg")])
    with pytest.raises(FedloomError) as caught:
        tables.collect(make_results.planned(plan), store.root)
    assert f"{run}/metrics.parquet: " in str(caught.value) and problem in str(caught.value)
    assert "store verify --remove" in str(caught.value)


def test_a_run_that_says_it_diverged_may_have_grown_past_all_numbers() -> None:
    record = make_results.record(50, "diverged")
    run_check.joined_metrics([rows(metric="loss", value=float("inf"))], [record], ["a"])
    with pytest.raises(FedloomError, match="value is not from 0 to 1"):
        run_check.joined_metrics([rows(value=5.0)], [record], ["a"])


def test_of_many_runs_the_one_with_the_fault_is_named() -> None:
    records = [make_results.record(50), make_results.record(60)]
    later = rows(round=60)
    joined = run_check.joined_metrics([rows(), later], records, ["a", "b"])
    assert joined["round"].tolist() == [50, 50, 60, 60]
    faults = {"client is not": later.assign(client=-1), "ends after round 50": rows()}
    for problem, fault in faults.items():
        with pytest.raises(FedloomError, match=f"^b: {problem}"):
            run_check.joined_metrics([rows(), fault], records, ["a", "b"])


SPEC = shelving.spec_of(0)
RECORDS: dict[str, tuple[dict[str, Any], str]] = {
    "state": ({"state": "done"}, "state: unknown value 'done'"),
    "start": ({"start": "../../x"}, "start: is '../../x'. Allowed: the name of another run"),
    "start that is none of the spec": ({"start": "f" * 16}, "Allowed: None, as in the spec"),
    "stack": ({"execution": {"backend": "loop", "stack": 5}}, "execution.stack: is 5. Allowed: a"),
    "hollow spec": ({"spec": {}}, "spec.dataset: is missing"),
    "rounds": ({"rounds": 49}, "rounds: is 49. Allowed: 50, as in the spec"),
    "other name": ({"run": "f" * 16}, "its record is that of run "),
    "no number": (
        {"spec": {**SPEC, "model": {"name": "mlp", "x": float("nan")}}},
        "its record has an invalid spec",
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_records_that_no_run_writes(store: Store, name: str) -> None:
    run = shelving.add(store)
    changes, problem = RECORDS[name]
    rewrite(store, run, **changes)
    assert store.verify(run) == [], "the hashes are right"
    [said] = run_check.find_problems(store, run)
    assert run in said and problem in said
    # Listed nonetheless, so that it can be found and removed.
    assert run in "\n".join(run_table.table(run_table.stored_runs(store)))


def test_a_record_that_was_edited_or_goes_round_in_a_circle_is_in_no_table(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    run, other = shelving.add(store), shelving.add(store, seed=1)
    study = make_results.plan([make_results.entry(run, "fedavg")])
    assert len(tables.collect(make_results.planned(study), store.root)[1]) == 1
    faster = {**SPEC, "training": {"rounds": 50, "lr": 0.5}}
    circle = {run: other, other: run}
    for edits, problem in (
        ({run: {"spec": faster}}, "its record is that of run "),
        ({run: {"start": run}}, "Allowed: the name of another run"),
        ({run: {"start": other} for run, other in circle.items()}, "from itself"),
    ):
        for name, edit in edits.items():
            rewrite(store, name, **edit)
        with pytest.raises(FedloomError, match=problem):
            tables.collect(make_results.planned(study), store.root)
        assert run_check.find_problems(store, run)
        assert "seed 0" in "\n".join(explain(run, {}, store))
        for name, seed in ((run, 0), (other, 1)):
            rewrite(store, name, spec=shelving.spec_of(seed), start=None)


def test_weights_that_cannot_be_read(store: Store) -> None:
    run = shelving.add(store, weights=True)
    assert run_check.find_problems(store, run) == []
    (store.root / run / "final.safetensors").write_bytes(b"\xff" * 100)
    known = {k: v for k, v in store.record(run).items() if k != "files"}
    kept = ("metrics.parquet", "final.safetensors")
    files.write_sealed(store.root / run / "run.json", known, files=kept)
    assert store.verify(run) == []
    [said] = run_check.find_problems(store, run)
    assert "final.safetensors: cannot be read as a saved tree" in said
