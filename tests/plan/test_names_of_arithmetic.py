"""The arithmetic of runs: by the key or by the model, in names, notes and jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import planning
import pytest

from fl.base import arithmetic, identity
from fl.base.arithmetic import NATIVE, PORTABLE
from fl.base.errors import ConfigError
from fl.plan import plan
from fl.plan.bundle import Run
from fl.plan.run_spec import RunSpec
from fl.store.store import Store
from fl.workflow import jobs


def planned(folder: Path, **changes: Any) -> plan.Plan:
    """The tiny study with changes."""
    place = folder / str(len([*folder.iterdir()]))
    return plan.make(planning.write_config(place, changes))


def training(name: str) -> dict[str, Any]:
    return {**planning.STUDY["training"], "arithmetic": name}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_native_runs_have_the_names_of_before_there_was_the_key(tmp_path: Path) -> None:
    [run] = planned(tmp_path, training=training(NATIVE)).runs.values()
    before = {key: v for key, v in run.spec["training"].items() if key != "arithmetic"}
    spec: Any = {**run.spec, "training": before}
    assert arithmetic.of_spec(spec) == NATIVE
    point = identity.point_id(spec, run.code, RunSpec(spec).default_keys)
    assert identity.run_id(point, run.seed) == run.run
    [portable] = planned(tmp_path, training=training(PORTABLE)).runs.values()
    [default] = planned(tmp_path).runs.values()
    assert portable.run == default.run != run.run


def test_a_large_model_is_native_and_a_note_tells_it(tmp_path: Path) -> None:
    images: dict[str, Any] = {"datasets": ["digits"], "models": [{"resnet18": {}}, "mlp"]}
    made = planned(tmp_path, **images)
    by_model = {run.model.partition("(")[0]: run for run in made.runs.values()}
    assert arithmetic.of_spec(by_model["resnet18"].spec) == NATIVE
    assert arithmetic.of_spec(by_model["mlp"].spec) == PORTABLE
    [study] = made.studies.values()
    [note] = [note for note in study.notes if "arithmetic" in note]
    assert note.startswith("resnet18")
    of_key = planned(tmp_path, **images, training=training(PORTABLE))
    assert all(arithmetic.of_spec(run.spec) == PORTABLE for run in of_key.runs.values())
    assert not any("arithmetic" in note for note in of_key.studies["tiny"].notes)
    told = planned(tmp_path, **images, training=training(NATIVE)).studies["tiny"].notes
    assert not any("arithmetic" in note for note in told), "the study says so itself"


def test_compiled_programs_are_native(tmp_path: Path) -> None:
    execution = {"backend": "compiled"}
    with pytest.raises(ConfigError, match=r"execution\.backend: is compiled"):
        planned(tmp_path, execution=execution)
    assert planned(tmp_path, execution=execution, training=training(NATIVE)).runs


def test_a_job_has_one_arithmetic(tmp_path: Path) -> None:
    entries = {name: {"method": "fedavg", "arithmetic": name} for name in (PORTABLE, NATIVE)}
    bundles = planned(tmp_path, methods=entries).bundles
    formed = list(jobs.form_jobs(bundles, Store(tmp_path / "runs"), merge=True))
    assert len(formed) == 2
    runs: list[Run] = [run for bundle in bundles.values() for run in bundle.runs]
    assert len(runs) == 2
