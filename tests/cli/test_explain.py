"""Why a run is not one that is there: the key, or the file."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pandas as pd
import planning
import pytest
import yaml

from fl.base.errors import FedloomError
from fl.cli import main
from fl.cli.explain import explain
from fl.plan import plan, specs
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


def member(start: str | None = None, **training: Any) -> dict[str, Any]:
    spec = deepcopy(SPEC)
    spec["training"].update(training)
    spec["start"] = f"point of {start}" if start else None
    return {"spec": spec, "start": start}


def finish(store: Store, run: str, planned: dict[str, Any], **code: str) -> None:
    files = {**specs.code_files(planned["spec"]), **code}
    with store.open(run) as workspace:
        assert workspace is not None
        record = {**planned, "run": run, "state": "complete", "code_files": files}
        workspace.finish(record, pd.DataFrame({"value": [1.0]}))


def lines(wanted: str, planned: dict[str, Any], store: Store) -> list[str]:
    return list(explain(wanted, planned, store))


def test_the_key_that_differs_from_the_nearest_run_is_named(tmp_path: Path):
    store = Store(tmp_path)
    finish(store, "far", member(lr=0.5, rounds=9))
    finish(store, "near", member(rounds=3))
    head, spec, *rest = lines("new", {"new1": member()}, store)
    assert head == "run new1: not trained"
    assert '"rounds": 2' in spec
    assert rest == ["nearest run there: near; this one differs in", "  training.rounds: 2, not 3"]


def test_the_file_whose_code_differs_is_named(tmp_path: Path):
    store = Store(tmp_path)
    finish(store, "old", member(), **{"fl/api/recipes.py": "another", "fl/gone.py": "x"})
    assert lines("new", {"new": member()}, store)[-3:] == [
        "nearest run there: old; this one differs in",
        "  the code of fl/gone.py",
        "  the code of fl/api/recipes.py",
    ]


def test_a_run_that_starts_from_another_is_told_by_what_that_one_is(tmp_path: Path):
    store = Store(tmp_path)
    finish(store, "base1", member(lr=0.5))
    finish(store, "tuned1", member(start="base1", rounds=7))
    planned = {"base2": member(), "tuned2": member(start="base2", rounds=7)}
    assert lines("tuned2", planned, store)[-2:] == [
        "nearest run there: tuned1; this one differs in",
        "  start.training.lr: 0.1, not 0.5",
    ]


def test_a_finished_run_and_an_empty_store(tmp_path: Path):
    store = Store(tmp_path)
    finish(store, "one", member())
    assert lines("o", {}, store)[0] == "run one: complete"
    assert lines("one", {}, store)[-1] == f"no other run is in {tmp_path}"
    same = lines("two", {"two": member()}, store)
    assert same[-2:] == ["nearest run there: one; this one differs in", "  nothing"]


def test_an_id_that_no_run_or_several_have_is_refused(tmp_path: Path):
    planned = {"ab1": member(), "ab2": member()}
    with pytest.raises(FedloomError, match="run 'ab': ab1, ab2 of the 2 runs"):
        lines("ab", planned, Store(tmp_path))
    with pytest.raises(FedloomError, match=r"run 'x': none of the 2 runs.*; a cannot be planned"):
        list(explain("x", planned, Store(tmp_path), ["a cannot be planned: b"]))


def test_a_run_of_any_study_in_the_config_folder_is_found(tmp_path: Path, capsys):
    config = planning.write_config(tmp_path)
    tiny = config / "studies" / "tiny.yaml"
    other = yaml.safe_load(tiny.read_text()) | {"seeds": [7], "title": "Another"}
    (config / "studies" / "other.yaml").write_text(yaml.safe_dump(other))
    (config / "studies" / "wrong.yaml").write_text("methods: {}\n")
    [run] = plan.make(config, ["other"]).studies["other"]["runs"]
    assert main.main(["explain", run["run"], "--config", str(config)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"run {run['run']}: not trained\n") and '"seed": 7' in out
    assert main.main(["explain", "xyz", "--config", str(config)]) == 1
    said = capsys.readouterr().err
    assert "'xyz': none of the 2 runs" in said and "; wrong cannot be planned: " in said
