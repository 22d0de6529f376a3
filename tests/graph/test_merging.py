"""Bundles merged into few jobs: what is trained, found again and lost is as with one job each."""

from __future__ import annotations

import shutil
from pathlib import Path

import project
import pytest
from project import SETTINGS, STUDY, TABLE, Project, apart

pytestmark = pytest.mark.graph

MERGED = ("--config", "cluster=true")
EXECUTION = {**SETTINGS["execution"], "run_minutes": 1, "minutes": 20}


def test_few_jobs_train_what_many_do(copied: Project):
    before = copied.values()
    copied.settings(execution=EXECUTION)
    shutil.rmtree(copied.root / "results" / "runs")
    table = copied.table()
    said = copied.snakemake(TABLE, *MERGED)
    assert said.count(": train ") == 1, "fine-tuning too, of what the same job trains"
    assert copied.table() == table
    assert "6 of 6 runs done" in said
    assert "Nothing to be done" in copied.snakemake(TABLE)

    shutil.rmtree(copied.root / "results" / "runs" / copied.run("fedavg 0"))
    copied.study(methods={**STUDY["methods"], "fedprox": {"mu": 0.9}})
    records = copied.records()
    assert copied.snakemake(TABLE, *MERGED).count(": train ") == 1
    assert copied.since(records) == ["fedavg 0", "fedprox 0", "fedprox 1"]
    assert apart(before, copied.values()) == ["fedprox"]


def test_both_names_of_the_slurm_profile_lead_to_it(tmp_path: Path):
    """A job asks a scheduler for the cores of the config, whatever this machine has."""
    fresh = project.create(tmp_path / "project")
    fresh.study(methods={"fedavg": None, "fedprox": {"mu": 0.5}}, seeds=[0])
    fresh.settings(execution={**EXECUTION, "processes": 2, "threads": 500})
    for words in (["slurm", "--config", "only="], ["workflow/profiles/slurm"]):
        said = fresh.snakemake("--profile", *words, "--dry-run")
        assert said.count(": train ") == 1
        assert "cores=1000, gpu=0, memory=8000 MiB, time=20 min" in said
    said = fresh.snakemake("--profile", "slurm", "--config", "cluster=false", "--dry-run")
    assert said.count(": train ") > 1
