"""``sources:`` of the config and the lock file, through the commands that users and jobs call."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from sources import mnist

from fl.cli import main


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a study over a subset of MNIST, whose files lie in ``own``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    mnist.write(tmp_path / "own")
    study: dict[str, Any] = {
        "datasets": [{"mnist": {"complete": False}}],
        "partitions": [{"homogeneous": {"clients": 2}}],
        "models": ["cnn"],
        "seeds": [0],
        "training": {"rounds": 1},
        "methods": {"fedavg": None},
    }
    studies = tmp_path / "config" / "studies"
    studies.mkdir(parents=True)
    (studies / "tiny.yaml").write_text(yaml.safe_dump(study))
    settings(tmp_path, sources={"mnist": "own"})
    return tmp_path


def settings(root: Path, **changes: Any) -> None:
    text = yaml.safe_dump({"studies": ["tiny"], **changes})
    (root / "config" / "config.yaml").write_text(text)


def planned(root: Path, kind: str) -> str:
    """The one thing of that kind in the plan."""
    assert main.main(["plan", "--write"]) == 0
    [path] = (root / "results" / "plan" / kind).iterdir()
    return path.stem


def test_folder_of_the_users_own_is_read_and_recorded(project: Path) -> None:
    name = planned(project, "datasets")
    assert main.main(["download", name]) == 0
    assert main.main(["prepare", name]) == 0
    raw = project / "data" / "raw" / "mnist-subset"
    told = json.loads((raw / "sources.json").read_text())
    assert told["dataset"] == "mnist"
    assert len(told["files"]) == 4
    lock = json.loads((project / "config" / "sources.lock.json").read_text())
    assert len(lock["mnist-subset"]) == 4
    assert (project / "data" / "prepared" / name / "dataset.json").exists()


def test_where_a_checked_set_comes_from_does_not_decide_which_runs_there_are(project: Path) -> None:
    study = project / "config" / "studies" / "tiny.yaml"
    study.write_text(study.read_text().replace("complete: false", "complete: true"))
    bundle = planned(project, "bundles")
    settings(project, sources={"mnist": "http://127.0.0.1:1/mirror"})
    assert planned(project, "bundles") == bundle


def test_where_a_folder_of_the_users_own_lies_does_not_decide_which_runs_there_are(
    project: Path,
) -> None:
    bundle = planned(project, "bundles")
    assert main.main(["download", planned(project, "datasets")]) == 0
    assert planned(project, "bundles") == bundle, "nor does the lock, which has the files now"
    (project / "own").rename(project / "moved")
    settings(project, sources={"mnist": "moved"})
    assert planned(project, "bundles") == bundle
    shutil.rmtree(project / "moved")
    (project / "moved").mkdir()
    assert planned(project, "bundles") == bundle, "the lock stands in for files that are gone"


def test_other_files_than_recorded_are_refused_by_the_plan_until_the_lock_is_mended(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, name = planned(project, "bundles"), planned(project, "datasets")
    assert main.main(["prepare", name]) == 0
    mnist.write(project / "own", train=50)
    assert main.main(["plan", "--write"]) == 1
    assert "config/sources.lock.json says" in capsys.readouterr().err
    (project / "config" / "sources.lock.json").unlink()
    shutil.rmtree(project / "results")
    assert planned(project, "bundles") != bundle
    new = planned(project, "datasets")
    assert main.main(["prepare", new]) == 0
    sizes = [
        len(np.load(project / "data" / "prepared" / n / "y.npy", mmap_mode="r"))
        for n in (name, new)
    ]
    assert sizes == [60, 70]


def test_published_files_are_held_to_their_checksums(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = project / "config" / "studies" / "tiny.yaml"
    study.write_text(study.read_text().replace("complete: false", "complete: true"))
    assert main.main(["download", planned(project, "datasets")]) == 1
    error = capsys.readouterr().err
    assert "data/raw/mnist/train-images-idx3-ubyte.gz" in error
    assert "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609" in error
