"""A stored run trained again, by the code that made it and by other code."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planning import Planned

from fl.base import files
from fl.cli import main
from fl.engine.simulation import Simulation
from fl.engine.state import State
from fl.runner import recompute as runner
from fl.runner.recompute import Difference
from fl.runner.repetitions import Repetitions
from fl.store.run_record import METRICS, RECORD

Plan = Callable[..., Planned]


def recompute(study: Planned, *words: str) -> int:
    config = study.root / "config"
    return main.main(["recompute", *words, "--config", str(config)])


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """By path, the content and the time of every file below a folder."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_run_trained_again_is_the_same_and_the_store_is_as_it_was(
    planned: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = {"fedavg": None, "tuned": {"method": "finetune", "start": "fedavg"}}
    study = planned(methods=methods)
    assert study.train("fedavg") == 0
    assert study.train("tuned") == 0
    before = snapshot(study.root)
    for label in methods:
        [run] = study.runs(label)
        capsys.readouterr()
        assert recompute(study, run[:9]) == 0
        said = capsys.readouterr().out
        assert said.splitlines()[-1] == "results are equal to the last digit"
        assert f"{run}, stored" in said
        assert "largest difference of accuracy: 0\n" in said
        [torch] = [line.split() for line in said.splitlines() if line.split()[0] == "torch"]
        assert torch[1] == torch[2]
        assert not [line for line in said.splitlines() if line.startswith("*")]
    assert snapshot(study.root) == before


def test_a_run_of_a_stack_is_trained_in_its_stack(
    planned: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    study = planned(seeds=[0, 1, 2], execution={"backend": "stacked"})
    assert study.train("fedavg") == 0
    run = study.runs("fedavg")[1]
    capsys.readouterr()
    assert recompute(study, run) == 0
    said = capsys.readouterr().out.splitlines()
    [stack] = [line.split()[-2:] for line in said if "runs in the stack" in line]
    assert stack == ["3", "3"]
    assert said[-1] == "results are equal to the last digit"


def test_other_numbers_are_found_and_the_environments_stand_side_by_side(
    planned: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    study = planned()
    assert study.train("fedavg") == 0
    [run] = study.runs("fedavg")
    rows = study.store().metrics(run)
    place = rows.index[(rows["metric"] == "loss") & (rows["round"] == 4)][0]
    rows.loc[place, "value"] += 0.25
    folder = study.root / "runs" / run
    record = files.read_sealed(folder / RECORD)
    record.pop("files")
    files.write_table(folder / METRICS, rows)
    record["versions"]["torch"] = "1.0"
    files.write_sealed(folder / RECORD, record, files=(METRICS,))
    capsys.readouterr()
    assert recompute(study, run) == 1
    said = capsys.readouterr().out
    [line] = [line for line in said.splitlines() if line.startswith("largest difference of loss")]
    assert "loss: 0.25: " in line and "round 4" in line
    [torch] = [line.split() for line in said.splitlines() if line.startswith("*")]
    assert torch[:3] == ["*", "torch", "1.0"]
    [cause] = [line for line in said.splitlines() if line.startswith("results differ, as they may")]
    assert "torch (1.0, now " in cause
    assert "accuracy after the last round differs by 0 points" in said


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({}, 1, "this is a fault"),
        ({"environment": {"processor": "another"}}, 1, "this is a fault"),
        ({"versions": {"numpy": "1.0"}}, 0, "numpy (1.0, now "),
        ({"execution": {"arithmetic": "native"}}, 0, "arithmetic (native, now portable)"),
        ({"trained_as": "0" * 16}, 0, "trained_as (0000000000000000, now none)"),
    ],
)
def test_a_last_digit_is_a_fault_of_portable_runs_with_equal_versions(
    planned: Plan, capsys: pytest.CaptureFixture[str], changes: Any, status: int, said: str
) -> None:
    study = planned()
    assert study.train("fedavg") == 0
    [run] = study.runs("fedavg")
    rows = study.store().metrics(run)
    place = rows.index[(rows["metric"] == "accuracy") & (rows["round"] == rows["round"].max())][0]
    rows.loc[place, "value"] = abs(rows.loc[place, "value"] - 1e-9)
    folder = study.root / "runs" / run
    record = files.read_sealed(folder / RECORD)
    del record["files"]
    for key, value in changes.items():
        record[key] = {**record[key], **value} if isinstance(value, dict) else value
    files.write_table(folder / METRICS, rows)
    files.write_sealed(folder / RECORD, record, files=(METRICS,))
    capsys.readouterr()
    assert recompute(study, run) == status
    text = capsys.readouterr().out
    assert re.search(r"accuracy after the last round differs by .*points", text)
    assert said in text and text.splitlines()[-1] == "tiny with this run: nothing is compared"


def changed(study: Planned, run: str, gain: float) -> None:
    """Give the stored run another accuracy in the last round, and another version of PyTorch."""
    rows = study.store().metrics(run)
    is_last = (rows["metric"] == "accuracy") & (rows["round"] == rows["round"].max())
    rows.loc[is_last, "value"] = (rows.loc[is_last, "value"] + gain).clip(0, 1)
    folder = study.root / "runs" / run
    record = files.read_sealed(folder / RECORD)
    del record["files"]
    record["versions"]["torch"] = "1.0"
    files.write_table(folder / METRICS, rows)
    files.write_sealed(folder / RECORD, record, files=(METRICS,))


def test_repetitions_tell_how_far_rounding_moves_a_run(
    planned: Plan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = {"fedavg": None, "tuned": {"method": "finetune", "start": "fedavg"}}
    study = planned(methods=methods)
    assert study.train("fedavg") == study.train("tuned") == 0
    [run] = study.runs("tuned")
    changed(study, run, -0.1)
    before = snapshot(study.root / "runs")
    capsys.readouterr()
    assert recompute(study, run) == 1
    said = capsys.readouterr().out
    assert "rounding alone moves it is not stored; --rounding 3" in said
    assert "tiny with this run: no verdict changes" in said
    began: list[int] = []
    begin = Simulation.begin

    def noted(self: Simulation, *words: Any, **keys: Any) -> State:
        began.append(self.training.rounding)
        return begin(self, *words, **keys)

    monkeypatch.setattr(Simulation, "begin", noted)
    assert recompute(study, run, "--rounding", "2") == 1
    assert [*dict.fromkeys(began)] == [0, 1, 2] and began.count(2) == 2, "and what it starts from"
    said = capsys.readouterr().out
    assert re.search(r"rounding alone moves it by up to .* points, in 2 repetitions", said)
    assert snapshot(study.root / "runs") == before


def test_a_run_whose_start_has_lost_its_own_start_is_trained_again(
    planned: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = {
        "fedavg": None,
        "calibrated": {"method": "ccvr", "start": "fedavg"},
        "again": {"method": "finetune", "start": "calibrated"},
    }
    study = planned(methods=methods)
    assert all(study.train(label) == 0 for label in methods)
    [first], [run] = study.runs("fedavg"), study.runs("again")
    study.store().remove(first)
    capsys.readouterr()
    assert recompute(study, run) == 0
    assert "equal to the last digit" in capsys.readouterr().out
    assert recompute(study, run, "--rounding", "1") == 1
    assert "from which it starts is missing" in capsys.readouterr().err


def test_a_difference_within_rounding_is_none_of_results(
    planned: Plan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = planned()
    assert study.train("fedavg") == 0
    [run] = study.runs("fedavg")
    changed(study, run, -0.1)
    # As if each repetition was far from the run.
    monkeypatch.setattr(Repetitions, "trained", lambda self, name, number: name)
    scores = iter([0.0])
    monkeypatch.setattr(runner, "_mean_score", lambda table, metric: next(scores))
    assert recompute(study, run, "--rounding", "1") == 0
    assert "results differ no further than rounding moves them" in capsys.readouterr().out


def test_rounding_of_a_study_is_measured_once_and_found_for_its_runs(
    planned: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    study = planned(methods={"fedavg": None, "local": None}, seeds=[0, 1])
    assert recompute(study, "tiny") == 1
    assert "Try: --rounding 3" in capsys.readouterr().err
    assert recompute(study, "tiny", "--rounding", "2") == 1
    assert "tiny: 4 of 4 runs are missing. Try: fedloom run tiny" in capsys.readouterr().err
    assert study.train("fedavg") == study.train("local") == 0
    assert recompute(study, "tiny", "--rounding", "2") == 0
    said = capsys.readouterr().out.splitlines()
    assert "in 2 repetitions" in said[0] and said[-1] == "no verdict changes"
    assert [line.split(":")[0].strip() for line in said[1:3]] == ["FedAvg", "Local"]
    assert len(study.store().runs()) == 12
    before = snapshot(study.root / "runs")
    assert recompute(study, "tiny", "--rounding", "2") == 0
    assert capsys.readouterr().out.splitlines() == said
    assert snapshot(study.root / "runs") == before
    [run, _] = study.runs("fedavg")
    changed(study, run, -0.1)
    capsys.readouterr()
    assert recompute(study, run) == 1
    assert "in 2 repetitions" in capsys.readouterr().out


def test_a_run_of_other_code_is_refused_with_both_versions_unless_asked_anyway(
    planned: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    study = planned()
    assert study.train("fedavg") == 0
    [made] = study.runs("fedavg")
    now = study.bundle("fedavg")["runs"][0]["code"]["method"]
    # As version 0 of FedAvg would have stored it.
    study.change("fedavg", lambda content: content["runs"][0]["code"].update(method="0"))
    [old] = study.runs("fedavg")
    (study.root / "runs" / made).rename(study.root / "runs" / old)
    path = study.root / "runs" / old / RECORD
    record = files.read_sealed(path)
    record |= {"run": old, "code": {**record["code"], "method": "0"}}
    record["versions"]["fedloom"] = "0.1.0"
    described = record.pop("files")
    files.write_described(path, record, described)
    capsys.readouterr()
    assert recompute(study, old) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"computed by other code: method 0 (now {now}), of fedloom 0.1.0. Try: --anyway" in error
    assert recompute(study, old, "--anyway") == 0
    assert "results are equal" in capsys.readouterr().out


def test_a_key_that_came_after_a_run_has_its_default(
    planned: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    study = planned(methods={"fedprox": {"mu": 0.5}})
    assert study.train("fedprox") == 0
    [run] = study.runs("fedprox")
    path = study.root / "runs" / run / RECORD
    record = files.read_sealed(path)
    described = record.pop("files")
    for key in ("adapt", "step", "patience"):
        del record["spec"]["method"][key]
        record["defaults"].remove(f"method.{key}")
    files.write_described(path, record, described)
    capsys.readouterr()
    assert recompute(study, run) == 0
    assert "results are equal to the last digit" in capsys.readouterr().out


@pytest.mark.parametrize("threads", [0, 1_000_000])
def test_a_record_with_threads_that_no_machine_has_is_refused(
    planned: Plan, capsys: pytest.CaptureFixture[str], threads: int
) -> None:
    study = planned()
    assert study.train("fedavg") == 0
    [run] = study.runs("fedavg")
    path = study.root / "runs" / run / RECORD
    record = files.read_sealed(path)
    described = record.pop("files")
    record["execution"] |= {"threads": threads, "device": "cuda:99"}
    files.write_described(path, record, described)
    capsys.readouterr()
    assert recompute(study, run) == 1
    assert f"execution.threads: is {threads}. Allowed: " in capsys.readouterr().err


def test_no_run_several_runs_and_a_damaged_run_are_refused(
    planned: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    study = planned(seeds=[0, 1])
    assert study.train("fedavg") == 0
    assert recompute(study, "no-such") == 1
    assert "no run ID starts with 'no-such' (searched " in capsys.readouterr().err
    assert recompute(study, "") == 1
    assert ", ".join(sorted(study.runs("fedavg"))) in capsys.readouterr().err
    run = study.runs("fedavg")[0]
    with (study.root / "runs" / run / METRICS).open("ab") as file:
        file.write(b"more")
    assert recompute(study, run) == 1
    assert METRICS in capsys.readouterr().err


def test_a_value_that_only_one_of_both_has_is_an_infinite_difference() -> None:
    nan = math.nan
    assert Difference("loss", {}, nan, nan).is_within(0.0)
    assert Difference("loss", {}, 1.0, nan).size == math.inf
    assert not Difference("loss", {}, nan, 1.0).is_within(1e-6)
    assert Difference("loss", {}, 1.0, 1.0 + 1e-7).is_within(1e-6)
    assert not Difference("loss", {}, 1.0, 1.0 + 1e-7).is_within(0.0)
    assert not Difference("loss", {}, 1.0, 1.0 + 1e-5).is_within(1e-6)
