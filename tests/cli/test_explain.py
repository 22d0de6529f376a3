"""The reason for which a run is not one that is there: the version, the edit or the key."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pandas as pd
import planning
import pytest
from planning import Planned

from fl.base.dataclass_json import from_json
from fl.base.errors import FedloomError
from fl.cli.explain import explain
from fl.plan import plan
from fl.plan.bundle import Run
from fl.store import run_record
from fl.store.store import Store

SPEC: dict[str, Any] = {
    "dataset": {"name": "digits"},
    "partition": {"name": "natural", "seed": 0, "val": 0.1, "test": 0.2},
    "model": {"name": "mlp", "hidden": [8], "norm": None},
    "method": {"name": "fedavg"},
    "terms": [],
    "training": {"lr": 0.1, "rounds": 2},
    "start": None,
    "seed": 0,
}
HASH = "0123456789abcdef"


def member(start: str | None = None, **training: Any) -> dict[str, Any]:
    spec = deepcopy(SPEC)
    spec["training"].update(training)
    spec["start"] = f"point of {start}" if start else None
    code = {"core": "1", "method": "1", "model": "1", "dataset": "d-1", "partition": "p-1"}
    return {"spec": spec, "start": start, "code": code, "code_files": {}}


def coded(files: dict[str, str], **code: str) -> dict[str, Any]:
    made = member()
    return {**made, "code": {**made["code"], **code}, "code_files": files}


def finish(store: Store, run: str, planned: dict[str, Any]) -> None:
    with store.open(run) as workspace:
        assert workspace is not None
        record = {**planned, "run": run, "state": "complete"}
        workspace.finish(record, pd.DataFrame({"value": [1.0]}))


def lines(wanted: str, planned: dict[str, Any], store: Store) -> list[str]:
    return list(explain(wanted, members(planned), store))


def members(planned: dict[str, Any]) -> dict[str, Run]:
    return {
        run: from_json(Run, {"defaults": [], "run": run, **each}) for run, each in planned.items()
    }


def test_the_key_that_differs_from_the_nearest_run_is_named_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    finish(store, "far", member(lr=0.5, rounds=9))
    finish(store, "near", member(rounds=3))
    planned = member()
    first, second, *rest = lines("new", {"new1": planned}, store)
    assert first == "training.rounds: 2, not 3"
    assert second.startswith("run new1: ") and second.endswith(f"{tmp_path} is near")
    keys = dict(line.split(": ", 1) for line in rest[3:])
    assert [*keys] == ["method", "training", "other keys"]
    assert keys["method"] == "fedavg" and keys["training"] == "lr 0.1, rounds 2"
    assert "seed 0" in keys["other keys"]


MANY = {f"fl/api/{number}.py": HASH for number in range(130)}


@pytest.mark.parametrize(
    ("ours", "theirs", "first"),
    [
        (coded({}, method="2"), coded({}), "version of method: 2, not 1"),
        (
            coded({"fl/methods/fedavg.py": HASH}, method=HASH),
            coded({}),
            "edited: fl/methods/fedavg.py",
        ),
        (
            coded({}),
            coded({"fl/api/trees.py": HASH}, core=HASH),
            "edited in the nearest run: fl/api/trees.py",
        ),
        (coded({}), coded(MANY, core=HASH), "; and 125 other differences"),
        (coded({}), coded({}), "equal in everything to the nearest run"),
    ],
)
def test_the_version_or_the_edit_that_differs_is_named_first(
    tmp_path: Path, ours: dict[str, Any], theirs: dict[str, Any], first: str
) -> None:
    store = Store(tmp_path)
    finish(store, "old", theirs)
    finish(store, "new", ours)
    assert lines("new", {}, store)[0].endswith(first)


def test_a_run_that_starts_from_another_is_told_by_what_that_one_is(tmp_path: Path) -> None:
    store = Store(tmp_path)
    finish(store, "base1", member(lr=0.5))
    finish(store, "tuned1", member(start="base1", rounds=7))
    planned = {"base2": member(), "tuned2": member(start="base2", rounds=7)}
    assert lines("tuned2", planned, store)[0] == "start.training.lr: 0.1, not 0.5"


def test_an_id_that_no_run_or_several_have_is_refused(tmp_path: Path) -> None:
    planned = {"ab1": member(), "ab2": member()}
    assert lines("ab1", planned, Store(tmp_path))[0] == f"{tmp_path} has no other run"
    with pytest.raises(FedloomError, match=r"'ab': ab1, ab2\. Try: "):
        lines("ab", planned, Store(tmp_path))
    with pytest.raises(FedloomError, match=r"'x' .*; a cannot be planned"):
        list(explain("x", members(planned), Store(tmp_path), ["a cannot be planned: b"]))


LOOK = """
import sys
from fl.cli import main
assert main.main(["explain", *sys.argv[1:]]) == 0
assert "torch" not in sys.modules and "fl.plan.plan" not in sys.modules
"""


def test_a_run_of_the_written_plan_is_explained_without_planning(
    planned: Callable[..., Planned],
) -> None:
    study = planned(methods={"fedavg": None})
    plan.write(plan.make(study.root / "config", to_write=True))
    config = str(study.root / "config")
    [run] = study.runs("fedavg")
    told = subprocess.run(
        [sys.executable, "-c", LOOK, run, "--config", config],
        cwd=planning.ROOT,
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout.partition("\n")[0].endswith("has no other run")


@pytest.mark.parametrize("named", ["{}", "results/runs/{}", "/a/runs/{}/", "runs/{}.partial"])
def test_a_run_is_named_by_its_folder_too(named: str) -> None:
    assert run_record.run_of(named.format("ab12")) == "ab12"
