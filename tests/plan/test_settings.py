"""Which runs of a study are draws of one setting, and what settings are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fl.base.dataclass_json import as_json, from_json
from fl.plan import plan, study_settings
from fl.plan.study_plan import StudyPlan

DIRICHLET = {"clients": 3, "val": 0.2, "test": 0.4}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = Path("config")
    (folder / "studies").mkdir(parents=True)
    (folder / "config.yaml").write_text("studies: [tiny]\n")
    return folder


def planned(folder: Path, **changes: Any) -> StudyPlan:
    study = {
        "datasets": ["digits"],
        "partitions": [{"homogeneous": {"clients": 3}}],
        "models": [{"mlp": {"hidden": [8]}}],
        "methods": {"fedavg": None},
        "seeds": [0, 1],
        "training": {"rounds": 2},
    }
    (folder / "studies" / "tiny.yaml").write_text(
        yaml.safe_dump({**study, **changes}, sort_keys=False)
    )
    return plan.make(folder, ["tiny"], checked=False).studies["tiny"]


def draws(study: StudyPlan) -> dict[str, list[str]]:
    """By setting's title, its draws."""
    titles = {setting.id: setting.title for setting in study.settings}
    found: dict[str, list[str]] = {title: [] for title in titles.values()}
    for run in study.runs:
        if run.draw not in found[titles[run.setting]]:
            found[titles[run.setting]].append(run.draw)
    return found


def test_seeds_of_data_and_partition_are_draws_of_one_setting(config: Path):
    synthetic = {"clients": 3, "samples": 30, "seed": [1, 2]}
    study = planned(
        config,
        datasets=[{"synthetic": synthetic}],
        partitions=[{"dirichlet": {**DIRICHLET, "alpha": [0.5, 5.0], "seed": [0, 7]}}],
    )
    half, five = study.settings
    model = "mlp(hidden=[8])"
    assert half.title == (
        "synthetic(clients=3, samples=30) · "
        f"dirichlet(clients=3, val=0.2, test=0.4, alpha=0.5) · {model}"
    )
    assert (half.short_title, five.short_title) == ("alpha=0.5", "alpha=5.0")
    assert study.shared == (
        "synthetic(clients=3, samples=30) · dirichlet(clients=3, val=0.2, test=0.4) · " + model
    )
    assert set(draws(study)[half.title]) == {
        f"data set seed {data}, partition seed {partition}"
        for data in (1, 2)
        for partition in (0, 7)
    }


def test_a_seed_that_is_left_out_has_its_default(config: Path):
    dirichlet = {**DIRICHLET, "alpha": 0.5}
    study = planned(
        config, partitions=[{"dirichlet": dirichlet}, {"dirichlet": {**dirichlet, "seed": 3}}]
    )
    [(title, found)] = draws(study).items()
    assert "seed" not in title and found == ["partition seed 0", "partition seed 3"]


def test_a_setting_with_one_draw_is_called_as_it_is_written(config: Path):
    study = planned(config, partitions=[{"homogeneous": {"clients": 3, "seed": 3}}])
    assert draws(study) == {"digits · homogeneous(clients=3, seed=3) · mlp(hidden=[8])": [""]}
    assert study.shared == "" and study.settings[0].short_title == study.settings[0].title


def test_text_in_a_value_is_no_seed(config: Path, tmp_path: Path):
    folders = [tmp_path / f"runs, seed={i}" for i in (3, 4)]
    for folder in folders:
        folder.mkdir()
        (folder / "a.csv").write_text("x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(30)))
    tables = [{"table": {"path": str(folder / "a.csv"), "label": "y"}} for folder in folders]
    study = planned(config, datasets=tables)
    assert len(study.settings) == 2 and all(found == [""] for found in draws(study).values())
    assert study.settings[0].short_title == f"path={folders[0] / 'a.csv'}"


@pytest.mark.parametrize(
    "template, title",
    [
        ("Dirichlet {alpha}, {seed}", "Dirichlet 0.5"),
        ("Dirichlet {alpha}, seed {seed}", "Dirichlet 0.5"),
        ("digits v{seed}", "digits"),
        ("v{alpha}-{seed}", "v0.5"),
        ("half (draw {seed})", "half"),
    ],
)
def test_the_title_of_a_setting_is_that_of_its_draws_without_seeds(
    config: Path, template: str, title: str
):
    dirichlet = {**DIRICHLET, "alpha": 0.5, "seed": [10, 11], "title": template}
    study = planned(config, partitions=[{"dirichlet": dirichlet}])
    assert [setting.title for setting in study.settings] == [f"digits · {title} · mlp(hidden=[8])"]


def test_titles_that_end_in_numbers_are_not_cut(config: Path):
    dirichlet = {**DIRICHLET, "alpha": 0.5}
    versions = [
        {"dirichlet": {**dirichlet, "clients": n, "title": f"digits v{n}"}} for n in (10, 11)
    ]
    study = planned(config, partitions=versions)
    assert [setting.short_title for setting in study.settings] == ["digits v10", "digits v11"]


def test_a_plan_of_a_study_is_read_as_it_was_written(config: Path):
    study = planned(config, departures=["none"])
    assert from_json(StudyPlan, as_json(study)) == study
    assert study_settings.DRAWN == ("data set", "partition")
