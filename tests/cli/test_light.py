"""Commands that train nothing do not wait for torch, whose import takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import planning
import pytest
import yaml
from make_results import clients, write_run

from fl.cli import main
from fl.plan import kept, plan

COMMANDS = (
    *(
        "methods",
        "terms",
        "alterations",
        "models",
        "datasets",
        "partitions",
        "partitions dirichlet",
    ),
    *("datasets cifar10-c", "status", "show tiny", "show tiny --planned", "report tiny"),
    *("store ls", "tables tiny", "analyses", "methods fedprox", "methods fedfm", "terms mk-mmd"),
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
    write_run(tmp_path / "runs", member["run"], clients([0.5, 0.6]), spec=member["spec"])
    return tmp_path


def spied(folder: Path, *commands: str) -> dict[str, list[Any]]:
    """By command, its exit status and whether torch was imported by then, in one new process."""
    done = subprocess.run(
        [sys.executable, "-c", SPY, json.dumps(commands)],
        cwd=folder,
        env={"PYTHONPATH": str(planning.ROOT), "PATH": "/usr/bin:/bin"},
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
    planned = json.loads((lab / "results" / "plan" / "plan.json").read_text())["runs"]
    [run] = {*planned} - {path.name for path in (lab / "runs").iterdir()}
    return str(run)


def edit(lab: Path, **changes: Any) -> None:
    path = lab / "config" / "studies" / "tiny.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes, sort_keys=False))


def test_who_edits_a_number_does_not_wait_for_torch(lab: Path) -> None:
    training = {"rounds": 7, "lr": 0.03, "batch_size": 20, "momentum": 0.5}
    rates = {"training": training, "seeds": [2, 3]}
    edit(lab, **rates, methods={"fedavg": None})
    assert spied(lab, "plan", "plan tiny --runs") == {
        "plan": [0, False],
        "plan tiny --runs": [0, False],
    }
    edit(lab, **rates, methods={"fedavg": None, "fedprox": {"mu": 0.1}})
    assert spied(lab, "plan") == {"plan": [0, True]}, "a method is new, and tried"
    edit(lab, **rates, methods={"fedavg": None, "fedprox": {"mu": [0.2, 0.3]}})
    assert spied(lab, "plan") == {"plan": [0, False]}
    edit(lab, methods={"fedprox": {"mu": 0.1, "terms": {"cosine": {"layers": ["1"]}}}})
    assert spied(lab, "plan --write") == {"plan --write": [0, True]}


def test_who_asks_which_runs_there_are_never_waits_for_torch(lab: Path) -> None:
    methods = {"fedavg": None, "fedrep": None, "moon": {"mu": 0.5}}
    edit(lab, methods=methods, models=[{"mlp": {"hidden": [5]}}, {"mlp": {"hidden": [9]}}])
    asked = (f"explain {untrained(lab)}", "store gc")
    assert spied(lab, *asked) == {command: [0, False] for command in asked}
    assert spied(lab, "plan") == {"plan": [0, True]}, "it was not kept as if it had been tried"


@pytest.mark.parametrize("damage", ["", "[]", '{"trial": 1}', '{"trial": "x", "known": {"a": []}}'])
def test_what_was_tried_is_tried_again_where_its_file_is_damaged(lab: Path, damage: str) -> None:
    path = lab / "results" / "plan" / "tried.json"
    whole = path.read_text()
    path.write_text(damage)
    edit(lab, seeds=[5])
    kept.asked(Path("config"))
    assert path.read_text() == whole


def test_a_variable_with_another_value_is_another_plan(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two tables, the plan is for the one that the variable now leads to."""
    config = Path("config")
    for number in (1, 2):
        (lab / f"at{number}").mkdir()
        rows = "".join(f"{i},{i * number},{i % 2}\n" for i in range(40))
        (lab / f"at{number}" / "own.csv").write_text("a,b,label\n" + rows)
    table = {"table": {"path": "${WHERE_TABLES_ARE}/own.csv", "label": "label"}}
    edit(lab, datasets=[table], partitions=[{"homogeneous": {"clients": 2}}])
    found = {}
    for number in (1, 2, 1):
        monkeypatch.setenv("WHERE_TABLES_ARE", str(lab / f"at{number}"))
        runs = {run["run"] for run in kept.asked(config).studies["tiny"]["runs"]}
        assert found.setdefault(number, runs) == runs
    assert not found[1] & found[2]


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"key": 1', None])
def test_a_kept_plan_that_is_damaged_is_made_anew(
    lab: Path, damage: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Path("config")
    made = kept.asked(config)
    [path] = (lab / "results" / "plan" / "kept").iterdir()
    whole = path.read_text()
    path.write_text(whole.replace('"seed": 0', '"seed": 7', 1) if damage is None else damage)
    assert kept.asked(config).bundles == made.bundles
    assert path.read_text() == whole


def test_a_study_is_read_from_the_plan_until_config_changes(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Path("config")
    made = plan.make(config).studies["tiny"]
    with monkeypatch.context() as patch:
        patch.setattr(plan, "make", lambda *asked: pytest.fail("made anew"))
        assert kept.study(config, "tiny") == json.loads(json.dumps(made))
    path = config / "studies" / "tiny.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"seeds": [0, 1, 2]}))
    assert len(kept.study(config, "tiny")["runs"]) == 3
    written = json.loads((lab / "results" / "plan" / "studies" / "tiny.json").read_text())
    assert len(written["runs"]) == 2, "asking writes nothing"
    (config / "studies" / "other.yaml").write_text(path.read_text())
    assert kept.study(config, "other")["study"] == "other", "one that config.yaml does not name"
