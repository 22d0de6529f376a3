"""What Snakemake says about the workflow before anything runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import project
import pytest
import yaml
from project import REPOSITORY, Project

pytestmark = pytest.mark.graph


def test_lint_asks_for_nothing(finished: Project):
    assert "Congratulations" in finished.snakemake("--lint")


def test_another_workflow_has_it_as_a_module(tmp_path: Path):
    """As `snakedeploy deploy-workflow` writes it, with rules that are renamed."""
    other = Project(tmp_path / "other")
    (other.root / "config" / "studies").mkdir(parents=True)
    other.study(methods={"fedavg": None}, seeds=[0])
    other.settings()
    other.write(
        "Snakefile",
        f"""
configfile: "config/config.yaml"
module fedloom:
    snakefile: {str(REPOSITORY / "workflow" / "Snakefile")!r}
    config: config
use rule * from fedloom as fedloom_*
rule mine:
    input: rules.fedloom_reports.input
    output: "mine.txt"
    shell: "wc {{input}} > {{output}}"
""",
    )
    output = other.snakemake("--cores", "1", "--dry-run", "mine")
    stats = output.partition("Job stats:")[2]
    counts = dict(re.findall(r"^(\w+) +(\d+)$", stats, flags=re.M))
    jobs = ("download", "prepare", "partition", "tables", "report")
    once = dict.fromkeys((f"fedloom_{name}" for name in jobs), "1")
    assert counts == {**once, "fedloom_train": "1", "mine": "1", "total": "7"}
    other.snakemake("--cores", "1", "data/raw/synthetic/sources.json")


def test_a_report_of_snakemake_shows_page_and_tables(finished: Project, tmp_path: Path):
    output = finished.snakemake("--report", str(tmp_path / "report.html"))
    assert re.findall(r"Adding (\S+) ", output) == ["small.html", "small.md", "small.tex"]
    assert "Federated-learning studies by Fedloom" in (tmp_path / "report.html").read_text()


def test_environments_have_the_versions_of_the_lock():
    envs = REPOSITORY / "workflow" / "envs" / "fedloom.yaml"
    *_, pip = yaml.safe_load(envs.read_text())["dependencies"]
    files = [REPOSITORY / name for name in ("requirements.lock", "requirements-extras.lock")]
    lock = [line for file in files for line in file.read_text().splitlines()]
    needed = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = needed["optional-dependencies"]
    names = [*needed["dependencies"], *extras["workflow"], *extras["extras"]]
    graph_itself = ("snakemake", "dvc")
    wanted = {
        name
        for n in names
        if not (name := re.split("[<>=]", n)[0].lower()).startswith(graph_itself)
    }
    assert {pin.partition("==")[0].lower() for pin in pip["pip"]} == wanted
    assert set(pip["pip"]) <= set(lock)


def test_a_job_on_a_gpu_asks_for_one_of_the_one_there_is(tmp_path):
    fresh = project.create(tmp_path / "project")
    fresh.study(methods={"fedavg": None, "fedprox": {"mu": 0.5}}, seeds=[0])
    fresh.settings(execution={"device": "cuda"})
    output = fresh.snakemake("--dry-run")
    trains = [line for line in output.splitlines() if ": train " in line]
    assert trains
    assert all(line.endswith("gpu=1") for line in trains)
    profile = yaml.safe_load((fresh.root / "profiles" / "default" / "config.yaml").read_text())
    assert profile["resources"] == ["gpu=1"]
    assert fresh.records() == {}


def test_a_wrong_config_is_one_clear_error_and_loses_nothing(copied: Project):
    table = copied.table()
    copied.study(training={"lr": -1})
    output = copied.snakemake(exit_status=1)
    *_, error = output.splitlines()
    assert error == "error: config/studies/small.yaml: training.lr: is -1.0. Allowed: a number > 0"
    assert copied.table() == table


def test_a_study_that_is_not_planned_is_named(finished: Project):
    output = finished.snakemake("results/report/smal.html", exit_status=1)
    assert "studies: does not contain 'smal'. Allowed: small" in output


def test_words_of_run_make_a_study_of_their_own_once(tmp_path: Path):
    """The plain study and its files stay as they are; some seeds come first, then the others."""
    place = project.create(tmp_path / "project")
    study = place.root / "config" / "studies" / "small.yaml"
    before = study.read_bytes()
    words = ("small", "rounds=1", "methods.fedprox.mu=[0.5, 1]")
    said = project.fl(place, "run", *words, "--only", "seed=1")
    assert "4 of 8 runs, by --only seed=1" in said
    assert len(place.records()) == 4
    said = project.fl(place, "run", *words)
    name = "small,methods.fedprox.mu=[0.5,1],rounds=1"
    assert f"report: results/report/{name}.html" in said
    assert place.records().keys() == place.names(name).keys() and len(place.records()) == 8
    records, page = place.records(), place.root / "results" / "report" / f"{name}.html"
    made = page.stat().st_mtime_ns
    project.fl(place, "run", name)
    assert (place.records(), page.stat().st_mtime_ns, study.read_bytes()) == (records, made, before)
