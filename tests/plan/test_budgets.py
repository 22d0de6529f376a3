"""The note on entries that train a client longer or shorter than their study says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import planning
import pytest
import yaml

import fl
from fl.cli import main
from fl.plan import plan
from fl.plan.study_plan import StudyPlan

LENGTHS = ("local_epochs", "local_steps")
BY_FINETUNE = (
    "in a round, a client trains for local_epochs: 1, not for local_steps: 10 as the study's "
    "`training:` says, because the method finetune sets it. Try: local_steps: 10 in "
)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    planning.write_config(Path())


def planned_study(methods: dict[str, Any], **training: Any) -> StudyPlan:
    """The plan of a study with FedAvg and other entries."""
    training = {**planning.STUDY["training"], **training}
    planning.write_study(Path(), {"methods": {"fedavg": None, **methods}, "training": training})
    return plan.make(Path("config")).studies["tiny"]


def notes(methods: dict[str, Any], **training: Any) -> list[str]:
    return planned_study(methods, **training).notes


def test_the_budget_of_a_method_in_place_of_the_study_s_is_told() -> None:
    tuned = {"method": "finetune", "start": "fedavg"}
    assert notes({"ft": tuned}, local_steps=10) == [f"ft: {BY_FINETUNE}the entry"]
    several = {"ft": tuned, "ft-slow": {**tuned, "lr": 0.01}}
    assert notes(several, local_steps=10) == [f"ft, ft-slow: {BY_FINETUNE}each entry"]
    many = {f"ft{k}": {**tuned, "lr": 0.01 * k} for k in range(1, 10)}
    [note] = notes(many, local_steps=10)
    assert note == f"ft1, ft2, ft3, ft4, ft5, ft6 and 3 more: {BY_FINETUNE}each entry"


def test_the_note_follows_what_is_trained() -> None:
    """The note appears where the spec of the run has another length than the study, else not."""
    tuned = {"method": "finetune", "start": "fedavg"}
    for entry, training, is_told in [
        (tuned, {"local_steps": 10}, True),
        (tuned, {"local_epochs": 5}, True),
        (tuned, {"local_epochs": 1}, False),
        ({**tuned, "local_steps": 10}, {"local_steps": 10}, False),
        ({**tuned, "local_epochs": 2}, {"local_steps": 10}, False),
        ({"method": "fedprox", "mu": 0.1}, {"local_steps": 10}, False),
    ]:
        study = planned_study({"other": entry}, **training)
        trained = study.entries["other"].training
        is_other = any(trained[key] != [value] for key, value in training.items())
        assert bool(study.notes) == is_told == (is_other and not {*entry} & {*LENGTHS})


def test_a_file_of_the_method_is_named() -> None:
    tuned = {"ft": {"method": "finetune", "start": "fedavg"}}
    Path("config/methods/finetune.yaml").write_text("local_steps: 3\n")
    [note] = notes(tuned, local_steps=10)
    assert "trains for local_steps: 3, not for local_steps: 10" in note
    assert "because config/methods/finetune.yaml sets it." in note


def test_methods_that_train_no_client_have_no_note() -> None:
    """Neither steps nor epochs concern them, although they declare an epoch."""
    methods = {name: {"start": "fedavg"} for name in ("knn-per", "ccvr")}
    assert notes({**methods, "untrained": None}, local_steps=10) == []


def test_the_command_and_the_notebook_say_it(capsys: pytest.CaptureFixture[str]) -> None:
    note = notes({"ft": {"method": "finetune", "start": "fedavg"}}, local_steps=10)[0]
    assert main.main(["plan", "tiny"]) == 0
    assert f"  {note}\n" in capsys.readouterr().out
    study = yaml.safe_load(Path("config/studies/tiny.yaml").read_text())
    with pytest.warns(UserWarning, match="ft: in a round, a client trains for local_epochs: 1"):
        fl.run(**{**study, "training": {**study["training"], "rounds": 1}}, progress=False)
