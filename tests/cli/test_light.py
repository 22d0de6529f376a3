"""Commands that train nothing do not wait for torch, whose import takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import planning
import pytest
import yaml
from make_results import clients, write_run

from fl.cli import main
from fl.plan import plan, plan_files

COMMANDS = (
    *("methods", "terms", "alterations", "filters", "aggregations", "models", "datasets"),
    *("partitions", "partitions dirichlet", "filters noise", "aggregations krum"),
    *("devices", "devices classes", "selections", "servers"),
    *("datasets cifar10-c", "status", "show tiny", "show tiny --planned", "report tiny"),
    *("store ls", "tables tiny", "analyses", "methods fedprox", "methods fedfm", "terms cosine"),
    *("alterations mixstyle", "models cnn", "analyses features"),
)
SPY = """
import json, sys
from fl.cli import main
told = {}
for command in json.loads(sys.argv[1]):
    status = main.main([*command.split(), "--config", "config"])
    told[command] = [status, "torch" in sys.modules]
print("\\n" + json.dumps(told))
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A planned study, one of whose two runs is there; clients are held out of training."""
    monkeypatch.chdir(tmp_path)
    partition = {"dirichlet": {"clients": 4, "alpha": 0.5, "min_samples": 5}}
    planning.write_config(tmp_path, {"partitions": [partition], "seeds": [0, 1]})
    assert main.main(["plan", "--write", "--config", "config"]) == 0
    [bundle] = (tmp_path / "results" / "plan" / "bundles").glob("*.json")
    member, _ = json.loads(bundle.read_text())["runs"]
    known = {key: member[key] for key in ("spec", "code", "defaults")}
    write_run(tmp_path / "runs", member["run"], clients([0.5, 0.6]), **known)
    return tmp_path


def spied(folder: Path, *commands: str) -> dict[str, list[Any]]:
    """By command, its exit status and whether torch was imported by then, in one new process."""
    done = subprocess.run(
        [sys.executable, "-c", SPY, json.dumps(commands)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(planning.ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_torch_is_not_imported_where_nothing_is_trained(lab: Path) -> None:
    asked = (*COMMANDS, "plan", "plan --runs", f"explain {untrained(lab)}", "store gc")
    assert spied(lab, *asked) == {command: [0, False] for command in asked}


def test_a_job_with_nothing_to_do_does_not_wait_for_torch(lab: Path) -> None:
    [path] = (lab / "results" / "plan" / "bundles").glob("*.json")
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "runs": told["runs"][:1]}))
    train = f"train {path}"
    assert spied(lab, train) == {train: [0, False]}


def untrained(lab: Path) -> str:
    """The run that is planned and not in the store."""
    index = plan_files.read_index(lab / "results")
    assert index is not None
    [run] = index.runs - {path.name for path in (lab / "runs").iterdir()}
    return str(run)


def edit(lab: Path, **changes: Any) -> None:
    path = lab / "config" / "studies" / "tiny.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes, sort_keys=False))


def test_what_was_edited_is_tried_with_torch_until_it_is_written(lab: Path) -> None:
    edit(lab, methods={"fedavg": None, "fedprox": {"mu": 0.1}})
    asked = ("plan --write", "plan")
    assert [spied(lab, command)[command] for command in asked] == [[0, True], [0, False]]


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"key": 1', None])
def test_a_plan_that_is_damaged_is_made_anew(lab: Path, damage: str | None) -> None:
    config, path = Path("config"), Path("results/plan/plan.json")
    made, whole = plan.read_index(config), path.read_text()
    path.write_text(whole.replace('"runs": {', '"runs": {"a": [],', 1))
    if damage is not None:
        path.write_text(damage)
    assert path.read_text() != whole
    assert plan.read_index(config) == made
    assert path.read_text() == whole


def test_a_study_is_read_from_the_plan_until_config_changes(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Path("config")
    made = plan.make(config).studies["tiny"]
    with monkeypatch.context() as patch:
        patch.setattr(plan, "make", lambda *asked: pytest.fail("made anew"))
        assert plan.read(config, ["tiny"]).studies["tiny"] == made
    edit(lab, seeds=[0, 1, 2])
    assert len(plan.read(config, ["tiny"]).studies["tiny"].runs) == 3
    written = json.loads((lab / "results" / "plan" / "studies" / "tiny.json").read_text())
    assert len(written["runs"]) == 2, "asking writes nothing"
    path = config / "studies" / "tiny.yaml"
    (config / "studies" / "other.yaml").write_text(path.read_text())
    other = plan.read(config, ["other"]).studies["other"]
    assert other.study == "other", "one that config.yaml does not name"
