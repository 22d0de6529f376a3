"""The wheel alone: from an empty folder to a report, without a clone."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]

Program = Callable[..., str]

STUDY = {
    "title": "Two methods",
    "datasets": ["digits"],
    "partitions": [{"homogeneous": {"clients": 3}}],
    "models": ["logistic"],
    "seeds": [0],
    "training": {"rounds": 1, "batch_size": 16, "lr": 0.05},
    "methods": {"local": None, "fedavg": None},
}


@pytest.fixture(scope="module")
def fedloom(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Return the program of an environment with the wheel, called in an empty folder."""
    home = tmp_path_factory.mktemp("wheel")
    source = home / "source"
    source.mkdir()
    for name in ("fl", "workflow", "config", "pyproject.toml", "setup.py", "README.md", "LICENSE"):
        (source / name).symlink_to(ROOT / name)
    options = ["--quiet", "--no-deps", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip"]
    wheel = [*pip, "wheel", *options, "--no-build-isolation", "--wheel-dir", str(home), "."]
    subprocess.run(wheel, cwd=source, check=True)
    environment = home / "environment"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(environment)}))
    [built] = home.glob("*.whl")
    install = [*pip, "--python", str(python), "install", *options, "--no-index", str(built)]
    subprocess.run(install, check=True)
    # What it depends on is here already; a path file in it, such as this clone's, has no effect.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    folder = home / "empty"
    folder.mkdir()
    hidden = {"PYTHONPATH", "FEDLOOM_CODE"}
    variables = {key: value for key, value in os.environ.items() if key not in hidden}

    def call(*words: str) -> str:
        done = subprocess.run(
            [str(python), "-P", "-m", "fl", *words],
            cwd=folder,
            env={**variables, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    code = "import fl; print(fl.__file__)"
    ask = [str(python), "-P", "-c", code]
    place = subprocess.run(ask, env=variables, capture_output=True, text=True)
    assert str(packages) in place.stdout, place.stderr
    call.folder = folder  # type: ignore[attr-defined]
    return call


@pytest.mark.graph
def test_an_empty_folder_becomes_a_workspace_that_trains(fedloom: Program) -> None:
    folder: Path = fedloom.folder  # type: ignore[attr-defined]
    said = fedloom("init", "--slurm", "--dvc")
    assert "wrote dvc.yaml" in said
    assert (folder / "slurm" / "config.yaml").is_file()
    assert "8 runs in 4 bundles; 8 to train" in fedloom("plan")  # the first study, as it is

    study = folder / "config" / "studies" / "first.yaml"
    study.write_text(yaml.safe_dump(STUDY, sort_keys=False))
    said = fedloom("init")
    assert f"{study.relative_to(folder)} exists and differs from the new file: not changed" in said
    assert yaml.safe_load(study.read_text()) == STUDY

    said = fedloom("run", "first", "--only", "method=fedavg", "--", "--cores", "1")
    assert "FedAvg" in said
    assert "Local" not in said
    assert len([*(folder / "results" / "runs").glob("*/run.json")]) == 1
    assert not (folder / "results" / "report" / "first.html").exists()

    said = fedloom("run")
    assert "FedAvg" in said and "Local" in said
    log = folder / "results" / "logs" / "snakemake.log"
    assert "Building DAG of jobs" in log.read_text()
    assert (folder / "results" / "report" / "first.html").is_file()
    assert "2 of 2 runs stored" in fedloom("report", "first")
    assert fedloom("status", "first").startswith("plan of first\n")

    said = fedloom("doctor")
    assert "data, results, results/runs can be written" in said


def test_the_wheel_has_the_studies_of_papers_and_their_numbers(fedloom: Program) -> None:
    folder: Path = fedloom.folder  # type: ignore[attr-defined]
    fedloom("init", "papers", "--examples")
    studies = {path.name for path in (ROOT / "config" / "studies").rglob("*.yaml")}
    assert {path.name for path in (folder / "papers" / "config" / "studies").rglob("*.yaml")} == {
        *studies,
        "first.yaml",
    }
    said = fedloom("plan", "fedprox-draws", "--config", "papers/config", "--only", "method=fedavg")
    assert "fedprox" not in said.replace("fedprox-draws", "")
