from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import partition
import planning
import pytest
import torch
from planning import Planned

from fl import __main__
from fl.base import arithmetic
from fl.base.errors import Location
from fl.engine.simulate import Round
from fl.engine.simulation import Simulation
from fl.runner import environment, job_processes
from fl.runner.stack import Stack
from fl.store.run_check import check_whole

Plan = Callable[..., Planned]


def process(study: Planned, label: str, store: str = "runs") -> subprocess.Popen[str]:
    """``fedloom train`` on a bundle, in an empty folder."""
    elsewhere = study.root / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "fl", *study.arguments(label, store)],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": str(planning.ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def written(folder: Path) -> dict[str, int]:
    """Every file below a folder, and when it was last written."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in paths}


# It trains, once


def test_a_bundle_is_trained_and_then_there(planned: Plan) -> None:
    study = planned(seeds=[0, 1], methods={"local": None})
    job = process(study, "local")
    out, err = job.communicate(timeout=600)
    assert job.returncode == 0, err
    assert out == ""
    assert "round 6/6" in err
    store, runs = study.store(), study.runs("local")
    assert store.runs() == sorted(runs)
    assert [store.verify(run) for run in runs] == [[], []]
    for run, seed in zip(runs, (0, 1), strict=True):
        record = store.record(run)
        assert (record["state"], record["rounds"], record["note"]) == ("complete", 6, "")
        assert record["spec"]["seed"] == seed
        assert record["execution"]["backend"] == "stacked"
        assert record["costs"]["traffic"] == [[6, 0, 0]]
        assert record["costs"]["flops"] > 0 and record["costs"]["state_client"] > 0
        rows = store.metrics(run)
        assert rows["round"].is_monotonic_increasing
        assert set(rows["round"]) == {1, 2, 3, 4, 5, 6}
        loss = rows[rows["split"] == "train"].groupby("round")["value"].mean()
        assert loss[6] < 0.8 * loss[1]
    assert not store.metrics(runs[0]).equals(store.metrics(runs[1]))
    assert not (study.root / "elsewhere" / "results").exists()

    before = written(study.root)
    assert study.train("local") == 0
    assert written(study.root) == before

    assert study.train("local", "here") == 0
    for run in runs:
        assert study.files(run, "here") == study.files(run), "another process gets the same bits"
    assert "Warning" not in err, "the log has lines about the run and nothing else"


def test_unseen_clients_are_scored_apart_and_train_where_nothing_is_shared(planned: Plan) -> None:
    held_out = {"dirichlet": {"clients": 4, "alpha": 0.5, "min_samples": 5, "unseen": 1}}
    entries = {"fedavg": None, "finetune": {"start": "fedavg"}}
    study = planned(partitions=[held_out], methods=entries, keep_weights=True)
    for label in entries:
        assert study.train(label) == 0
    [table] = (study.root / "results" / "partitions").glob("*/partition.parquet")
    away = set(partition.unseen_clients(partition.read(table)).tolist())
    assert len(away) == 1
    rows = {label: study.store().metrics(study.runs(label)[0]) for label in entries}
    for label, found in rows.items():
        scored = found[found["metric"] == "accuracy"]
        assert set(scored.loc[scored["split"] == "unseen", "client"]) == away
        for split in ("val", "test"):
            assert set(scored.loc[scored["split"] == split, "client"]) == {0, 1, 2, 3} - away
        trained = set(found.loc[found["split"] == "train", "client"])
        assert trained == {0, 1, 2, 3} - (away if label == "fedavg" else set())
    own = rows["finetune"].query("split == 'unseen' and metric == 'loss'").set_index("round")
    assert own["stage"].tolist() == ["global"] + ["personal"] * 5
    assert own["value"][5] != own["value"][0]


def test_a_global_test_is_over_the_samples_of_all_clients(planned: Plan) -> None:
    study = planned(test="global", methods={"local": None})
    assert study.train("local") == 0
    rows = study.store().metrics(study.runs("local")[0])
    [table] = (study.root / "results" / "partitions").glob("*/partition.parquet")
    tests = int((partition.read(table)["split"] == "test").sum())
    assert set(rows.loc[rows["split"] == "test", "n"]) == {tests}
    assert rows.loc[rows["split"] == "test", "client"].nunique() == 4
    assert max(rows.loc[rows["split"] == "val", "n"]) < tests


def test_only_what_is_missing_is_trained(planned: Plan, caplog: pytest.LogCaptureFixture) -> None:
    study = planned(seeds=[0, 1, 2])
    whole = study.bundle("fedavg")
    study.change("fedavg", lambda b: b.update(runs=b["runs"][:2]))
    assert study.train("fedavg") == 0
    first = written(study.root / "runs")
    study.change("fedavg", lambda b: b.update(whole))
    caplog.clear()
    assert study.train("fedavg") == 0
    assert sum("already there" in message for message in caplog.messages) == 2
    assert first.items() < written(study.root / "runs").items()
    assert study.store().runs() == sorted(study.runs("fedavg"))


def test_auto_is_recorded_as_what_it_stands_for(
    planned: Plan, caplog: pytest.LogCaptureFixture
) -> None:
    study = planned(execution={"backend": "auto"}, seeds=[0, 1])
    runs = study.runs("fedavg")
    with caplog.at_level(logging.INFO):
        assert study.train("fedavg") == 0
    for run in runs:
        execution = study.store().record(run)["execution"]
        assert (execution["backend"], execution["stack"]) == ("stacked", runs)
    assert [m for m in caplog.messages if m.startswith("backend stacked (")]


BRANCHING = '''"""Branching: a layer that looks at its inputs.

Nobody. Nothing. Nowhere 2026.
"""

from dataclasses import dataclass

from torch import nn


class Layer(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else super().forward(2 * x)


@dataclass(frozen=True)
class Branching:
    def build(self, shape, classes):
        return nn.Sequential(nn.Flatten(), Layer(shape[0], classes))
'''


def test_auto_trains_one_by_one_what_cannot_be_stacked(
    planned: Plan, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "branching_lab" / "models").mkdir(parents=True)
    (tmp_path / "branching_lab" / "models" / "branching.py").write_text(BRANCHING)
    study = planned(
        execution={"backend": "auto"}, plugins=[tmp_path / "branching_lab"], models=["branching"]
    )
    with caplog.at_level(logging.INFO):
        assert study.train("fedavg") == 0
    [run] = study.runs("fedavg")
    assert study.store().record(run)["execution"]["backend"] == "loop"
    [line] = [message for message in caplog.messages if message.startswith("backend ")]
    assert line.startswith("backend loop (clients cannot be stacked: ")


def test_what_cannot_be_compiled_is_not_called_so(
    planned: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arithmetic, "is_right", lambda name: True)
    entry = {
        "terms": {"mk-mmd": {"layers": ["3"], "update": "periodic", "every": 2}},
        "arithmetic": "native",
    }
    study = planned(execution={"backend": "compiled"}, methods={"fedavg": entry})
    assert study.train("fedavg") == 0
    [run] = study.runs("fedavg")
    assert study.store().record(run)["execution"]["backend"] == "stacked"


# It is stopped, and goes on


def test_a_request_after_the_last_check_of_a_bundle_is_not_lost() -> None:
    with pytest.raises(job_processes.Interruption), job_processes.record_leave_requests():
        os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_in_a_long_round_is_status_75_after_that_round(
    planned: Plan, caplog: pytest.LogCaptureFixture
) -> None:
    long = {**planning.STUDY["training"], "rounds": 2, "local_epochs": 120}
    study = planned(training=long)
    [run] = study.runs("fedavg")
    job = process(study, "fedavg", "broken")
    end = time.monotonic() + 300
    while not study.log(run).exists():
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < end
        time.sleep(0.002)
    time.sleep(0.02)
    job.send_signal(signal.SIGTERM)
    _, err = job.communicate(timeout=300)
    assert job.returncode == 75, err
    assert err.splitlines()[-1] == f"stopped: {run}: left after round 1"
    events = [json.loads(line) for line in study.log(run).read_text().splitlines()]
    assert [one["event"] for one in events] == ["begun", "round", "left"]
    assert [path.name for path in study.checkpoints(run, "broken")] == ["round-000001"]
    caplog.clear()
    assert study.train("fedavg", "broken") == 0
    assert "resumed after round 1" in caplog.messages
    assert study.train("fedavg", "whole") == 0
    assert study.files(run, "broken") == study.files(run, "whole")
    assert not study.checkpoints(run, "broken")


def test_sigterm_in_the_last_round_lets_the_run_end(planned: Plan) -> None:
    study = planned(execution={"backend": "loop"}, seeds=[0, 1])
    first, second = study.runs("fedavg")
    with planning.signalled(after=6):
        assert study.train("fedavg") == 75
    assert study.store().runs() == [first]
    assert study.train("fedavg") == 0
    assert study.store().runs() == sorted([first, second])


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [
        (signal.SIGTERM, 75, "stopped: before the next run had begun\n"),
        (signal.SIGINT, 130, "interrupted\n"),
    ],
)
def test_a_signal_ends_the_wait_for_another_job(
    planned: Plan, number: signal.Signals, status: int, said: str
) -> None:
    study = planned()
    [run] = study.runs("fedavg")
    with study.store().open(run):
        job = process(study, "fedavg")
        try:
            assert job.stderr is not None
            assert any("waiting for" in line for line in job.stderr)
            job.send_signal(number)
            assert job.wait(timeout=300) == status
            *_, last = job.stderr
            assert last == said
        finally:
            job.kill()
            job.communicate()
    assert study.train("fedavg") == 0


def test_ctrl_c_saves_the_state_and_twice_stops_at_once(
    planned: Plan, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    study = planned()
    [run] = study.runs("fedavg")
    with planning.signalled(after=3, number=signal.SIGINT):
        assert study.train("fedavg") == 75
    assert [path.name for path in study.checkpoints(run)][-1] == "round-000003"
    assert "Ctrl-C again stops at once" in capfd.readouterr().err

    def twice(*_: object) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0)  # Signals that come together are one.

    with monkeypatch.context() as patch:
        patch.setattr("fl.runner.stack.Stack.save", twice)
        with pytest.raises(KeyboardInterrupt):
            study.train("fedavg")
    assert study.train("fedavg") == 0
    assert study.train("fedavg", "whole") == 0
    assert study.files(run) == study.files(run, "whole")


def test_what_ctrl_c_breaks_is_no_failure(planned: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        raise RuntimeError("the compiler was interrupted")

    study = planned()
    with monkeypatch.context() as patch:
        patch.setattr("fl.runner.stack.Stack.add", broken)
        assert study.train("fedavg") == 75
    assert study.train("fedavg") == 0


def test_ctrl_c_is_one_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def main() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("fl.cli.main.main", main)
    assert __main__.run() == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_the_backend_of_the_checkpoint_is_the_one_that_goes_on(planned: Plan) -> None:
    study = planned(execution={"backend": "loop"})
    [run] = study.runs("fedavg")
    assert study.train("fedavg", "whole") == 0
    with planning.signalled(after=3):
        assert study.train("fedavg") == 75
    study.change("fedavg", lambda b: b["execution"].update(backend="stacked"))
    assert study.train("fedavg") == 0
    execution = study.store().record(run)["execution"]
    assert execution["backend"] == "loop"
    assert execution["stretches"] == [{"after": after, "processes": 1} for after in (0, 3)]
    assert study.files(run) == study.files(run, "whole")


def test_seeds_in_one_stack_go_on_as_they_began(planned: Plan) -> None:
    study = planned(seeds=[0, 1, 2])
    runs = study.runs("fedavg")
    assert study.train("fedavg", "whole") == 0
    stacks = [study.store("whole").record(run)["execution"]["stack"] for run in runs]
    assert stacks == [runs] * 3
    with planning.signalled(after=3):
        assert study.train("fedavg") == 75
    assert [len(study.checkpoints(run)) for run in runs] == [2, 0, 0]
    # As if it had been killed between the end of one run and that of the next.
    shutil.copytree(study.root / "whole" / runs[1], study.root / "runs" / runs[1])
    assert study.train("fedavg") == 0
    for run in runs:
        assert study.files(run) == study.files(run, "whole")


def test_a_stack_goes_on_without_seeds_that_are_no_longer_asked_for(planned: Plan) -> None:
    study = planned(seeds=[0, 1])
    first, second = study.runs("fedavg")
    with planning.signalled(after=3):
        assert study.train("fedavg") == 75
    study.change("fedavg", lambda b: b.update(runs=b["runs"][:1]))
    assert study.train("fedavg") == 0
    assert study.store().runs() == [first]
    record, rows = study.store().record(first), study.store().metrics(first)
    assert record["execution"]["stack"] == [first]
    assert sorted(set(rows["round"])) == [1, 2, 3, 4, 5, 6]
    assert second not in rows.columns


def test_checkpoints_by_their_time_go_on_to_the_same_bits(
    planned: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = planned(execution={"checkpoint_every": None})
    [run] = study.runs("fedavg")
    assert study.train("fedavg", "whole") == 0
    add = Stack.add

    def broken(stack: Stack, finished: dict[str, Round]) -> None:
        add(stack, finished)
        if stack.round == 5:
            assert not study.checkpoints(run, "short"), "a run of a moment needs none"
            raise RuntimeError("the machine failed")

    with monkeypatch.context() as patch:
        patch.setattr(Stack, "add", broken)
        assert study.train("fedavg", "short") == 1
        assert not study.checkpoints(run, "short")
        patch.setattr("fl.runner.stack.MAX_CHECKPOINT_SHARE", 1e9)
        assert study.train("fedavg", "broken") == 1
    names = [path.name for path in study.checkpoints(run, "broken")]
    assert names == ["round-000003", "round-000004"]
    assert study.train("fedavg", "broken") == 0
    assert study.files(run, "broken") == study.files(run, "whole")


def damage_state(folder: Path) -> None:
    path = folder / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def test_a_damaged_checkpoint_is_removed_and_the_bits_are_the_same(
    planned: Plan, caplog: pytest.LogCaptureFixture
) -> None:
    study = planned()
    [run] = study.runs("fedavg")
    assert study.train("fedavg", "whole") == 0
    with planning.signalled(after=5):
        assert study.train("fedavg", "broken") == 75
    older, newest = study.checkpoints(run, "broken")
    assert (older.name, newest.name) == ("round-000004", "round-000005")
    damage_state(newest)
    caplog.clear()
    assert study.train("fedavg", "broken") == 0
    assert any(str(newest) in message and "is removed" in message for message in caplog.messages)
    assert "resumed after round 4" in caplog.messages
    assert study.files(run, "broken") == study.files(run, "whole")


def test_without_a_whole_checkpoint_it_begins_again(planned: Plan) -> None:
    study = planned()
    [run] = study.runs("fedavg")
    assert study.train("fedavg", "whole") == 0
    with planning.signalled(after=5):
        assert study.train("fedavg", "broken") == 75
    for folder in study.checkpoints(run, "broken"):
        damage_state(folder)
    assert study.train("fedavg", "broken") == 0
    assert study.files(run, "broken") == study.files(run, "whole")


# It fails


def test_a_store_that_cannot_be_written_is_named_before_anything_is_trained(
    planned: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    study = planned(seeds=[0, 1])
    (study.root / "runs").write_text("a file")
    assert study.train("fedavg") == 1
    *_, said = capsys.readouterr().err.splitlines()
    assert said.startswith(f"error: {study.root / 'runs'}: a part of this path is a file")
    assert not (study.root / "results" / "partitions").exists()


def test_a_failing_run_leaves_the_others(planned: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    study = planned(seeds=[0, 1, 2], methods={"fedavg": None, "finetune": {"start": "fedavg"}})
    assert study.train("fedavg") == 0
    _, lost, _ = study.runs("fedavg")
    study.store().remove(lost)
    first, failing, last = study.runs("finetune")
    capsys.readouterr()
    assert study.train("finetune") == 1
    failures = [line for line in capsys.readouterr().err.splitlines() if line[:7] == "failed:"]
    assert len(failures) == 1
    assert failures[0].startswith(f"failed: {failing} (")
    assert "seed 1): " in failures[0]
    assert lost in failures[0]
    assert set(study.store().runs()) == {*study.runs("fedavg"), first, last} - {lost}

    before = study.files(first)
    assert study.train("fedavg") == 0
    assert study.train("finetune") == 0
    assert study.store().has(failing)
    assert study.files(first) == before


def test_one_cause_of_many_failures_is_traced_once(
    planned: Plan, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*given: Any, **how: Any) -> None:
        raise ZeroDivisionError("in every run")

    study = planned(seeds=[0, 1, 2])
    monkeypatch.setattr(Simulation, "run_rounds", staticmethod(broken))
    assert study.train("fedavg") == 1
    told = [record.message for record in caplog.records if "failed" in record.message]
    stack, first, *others = told
    assert stack == "a stack of 3 runs failed; its runs are trained one by one"
    assert first.count("Traceback") == 1, "of this error alone"
    assert first.count("ZeroDivisionError: in every run") == 1
    for run, line in zip(study.runs("fedavg")[1:], others, strict=True):
        assert line.startswith(run)
        assert line.endswith("failed with the same error")
        [attempt] = study.store().attempts(run)
        assert attempt.error == "ZeroDivisionError: in every run"


@pytest.mark.parametrize(
    "ask", [lambda: np.empty(2**60, np.uint8), lambda: torch.empty(2**60)], ids=["numpy", "torch"]
)
def test_memory_that_runs_out_is_said_with_the_run_and_what_to_lower(
    planned: Plan,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[], Any],
) -> None:
    study = planned()
    monkeypatch.setattr(Simulation, "begin", lambda *_: ask())
    assert study.train("fedavg") == 1
    [*_, line] = capsys.readouterr().err.strip().splitlines()
    [run] = study.runs("fedavg")
    assert line.startswith(f"failed: {run} (FedAvg on synthetic(")
    assert "): memory ran out (" in line and "; lower batch_size, " in line
    [attempt] = study.store().attempts(run)
    assert attempt.ended == "error" and "lower batch_size" in attempt.error


def test_a_run_that_diverges_is_recorded_as_such(planned: Plan) -> None:
    training = {**planning.STUDY["training"], "lr": 1e30}
    study = planned(seeds=[0, 1], training=training)
    assert study.train("fedavg") == 0
    for run in study.runs("fedavg"):
        record, rows = study.store().record(run), study.store().metrics(run)
        assert record["state"] == "diverged"
        assert record["rounds"] == rows["round"].max() < 6
        assert f"round {record['rounds']}" in record["note"]
        last = rows[rows["round"] == record["rounds"]]
        assert set(last["metric"]) == {"loss"}
        assert not np.isfinite(last["value"]).all()
    before = written(study.root / "runs")
    assert study.train("fedavg") == 0
    assert written(study.root / "runs") == before


def test_a_run_stops_early_and_leaves_its_stack(
    planned: Plan, tmp_path_factory: pytest.TempPathFactory
) -> None:
    training = {**planning.STUDY["training"], "rounds": 30, "lr": 0.2, "evaluate_every": 2}
    whole = planned(seeds=[0, 1, 2], training=training)
    early = planning.make(
        tmp_path_factory.mktemp("early"),
        seeds=[0, 1, 2],
        training={**training, "early_stopping": 5},
    )
    assert whole.train("fedavg") == 0
    with planning.signalled(8):
        assert early.train("fedavg") == 75
    assert early.train("fedavg") == 0
    ends = []
    for run, longer in zip(early.runs("fedavg"), whole.runs("fedavg"), strict=True):
        record, rows = early.store().record(run), whole.store().metrics(longer)
        scores = rows[(rows["split"] == "val") & (rows["metric"] == "accuracy")]
        best, value, end = 0, -1.0, 30
        for number, mean in scores.groupby("round")["value"].mean().items():
            if mean > value:
                best, value = number, mean
            elif number - best >= 5:
                end = number
                break
        assert (record["state"], record["rounds"]) == ("complete", end)
        assert [rounds for rounds, *_ in record["costs"]["traffic"]] == [end]
        assert f"no round was better than round {best}" in record["note"] or end == 30
        there = early.store().metrics(run)
        assert there["round"].max() == end
        pd.testing.assert_frame_equal(there, rows[rows["round"] <= end])
        check_whole(record, Location("run.json"))
        ends.append(end)
    assert len(set(ends)) > 1 and min(ends) < 30, ends
    assert "stretches" in record["execution"] and len(record["execution"]["stretches"]) == 2


@pytest.mark.parametrize("key", ["core", "partition"])
def test_code_that_changed_after_planning_is_refused(
    planned: Plan, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    study = planned(seeds=[0, 1])

    def edit(bundle: dict[str, Any]) -> None:
        bundle["runs"][0]["code"][key] = "0" * 16

    study.change("fedavg", edit)
    old, other = study.runs("fedavg")
    assert study.train("fedavg") == 1
    err = capsys.readouterr().err
    assert f"failed: {old} (" in err
    assert re.search(rf"code of its {key} .*Try: plan again", err)
    assert study.store().runs() == [other]


def test_a_bundle_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = Planned(tmp_path)
    study.spec("cut").write_text('{"bundle": "a", "runs": [{"ru')
    assert study.train("cut") == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {study.spec('cut')}: ")
    assert "Try: a file of results/plan/bundles" in line


def test_data_that_is_damaged_is_named(planned: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    study = planned()
    assert study.train("fedavg", "first") == 0
    [array] = (study.root / "data" / "prepared").glob("*/x.npy")
    array.write_bytes(array.read_bytes()[:1000])
    capsys.readouterr()
    assert study.train("fedavg", "second") == 1
    assert f"{array.parent} and prepare it again" in capsys.readouterr().err


def test_the_record_says_by_what_and_on_what(planned: Plan) -> None:
    study = planned(methods={"fedavg": None, "finetune": {"start": "fedavg"}})
    assert study.train("fedavg") == 0
    assert study.train("finetune") == 0
    [start], [run] = study.runs("fedavg"), study.runs("finetune")
    record = study.store().record(run)
    [member] = study.bundle("finetune")["runs"]
    assert {key: record[key] for key in ("run", "spec", "code", "start")} == {
        key: member[key] for key in ("run", "spec", "code", "start")
    }
    assert record["start"] == start
    assert record["execution"]["device"] == "cpu"
    assert (
        record["versions"].items() >= {"torch": torch.__version__, "numpy": np.__version__}.items()
    )
    assert record["environment"]["lock"] and record["environment"]["processor"]
    assert datetime.now(UTC) - datetime.fromisoformat(record["date"]) < timedelta(hours=1)
    assert json.dumps(record)
    assert study.store().has_weights(start)
    assert not study.store().has_weights(run)


def test_the_version_names_the_commit_and_edits_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    version, git = environment.version, environment._git
    environment.commit.cache_clear()
    assert version() == environment.VERSION, "of an archive no commit is known"
    (tmp_path / "fl").mkdir()
    (tmp_path / "fl" / "a.py").write_text("")
    git("init")
    git("add", "fl")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--message", "first")
    environment.commit.cache_clear()
    clean = version()
    assert clean == f"{environment.VERSION}+g{git('rev-parse', 'HEAD')[:9]}"
    (tmp_path / "fl" / "b.py").write_text("")
    environment.commit.cache_clear()
    assert version() == f"{clean}.dirty"
    environment.commit.cache_clear()


def test_kept_weights_are_those_of_every_stage(planned: Callable[..., Planned]) -> None:
    study = planned(methods={"fedavg": None, "local": None, "ditto": None}, keep_weights=True)
    stages = {"fedavg": ["global"], "local": ["personal"], "ditto": ["global", "personal"]}
    for label, expected in stages.items():
        assert study.train(label) == 0
        [run] = study.runs(label)
        assert study.store().has_weights(run)
        kept = study.store().weights(run)
        assert list(kept) == expected
        for stage in expected:
            clients = (4,) if stage == "personal" else ()
            assert kept[stage]["params"]["1.weight"].shape == (*clients, 5, 60)
