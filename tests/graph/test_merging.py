"""Bundles merged into few jobs: what is trained, found again and lost is as with one job each."""

from __future__ import annotations

import shutil
from pathlib import Path

import project
import pytest
from project import REPORT, SETTINGS, STUDY, TABLE, Project, apart

pytestmark = pytest.mark.graph

MERGED = ("--config", "cluster=true")
EXECUTION = {**SETTINGS["execution"], "run_minutes": 1, "minutes": 20}


@pytest.fixture
def fresh(tmp_path: Path) -> Project:
    made = project.create(tmp_path / "project")
    made.settings(execution=EXECUTION)
    return made


def test_few_jobs_train_what_many_do(fresh: Project, finished: Project):
    said = fresh.snakemake(TABLE, *MERGED)
    assert said.count(": train ") == 1, "fine-tuning too, of what the same job trains"
    assert fresh.table() == finished.table()
    assert "6 of 6 runs done" in said
    assert "Nothing to be done" in fresh.snakemake(TABLE, *MERGED)
    assert "Nothing to be done" in fresh.snakemake(TABLE)

    table, before = fresh.table(), fresh.values()
    fresh.study(methods={**STUDY["methods"], "fedprox": {"mu": 0.9}})
    records = fresh.records()
    assert fresh.snakemake(TABLE, *MERGED).count(": train ") == 1
    assert fresh.since(records) == ["fedprox 0", "fedprox 1"]
    assert apart(before, fresh.values()) == ["fedprox"]
    fresh.study()
    records = fresh.records()
    assert fresh.snakemake(TABLE, *MERGED).count(": train ") == 0
    assert fresh.since(records) == []
    assert fresh.table() == table

    for name in ("fedavg 0", "fedprox 0", "fedprox 1"):
        shutil.rmtree(fresh.root / "results" / "runs" / fresh.run(name))
    assert fresh.snakemake(TABLE, *MERGED).count(": train ") == 1
    assert fresh.since(records) == ["fedavg 0", "fedprox 0", "fedprox 1"]
    assert fresh.table() == table


def test_on_one_machine_a_run_that_fails_leaves_all_others_of_its_job(fresh: Project):
    """Those too that start from another run of it."""
    shutil.copy(Path(__file__).with_name("brittle.py"), fresh.root / "fl" / "methods")
    fresh.write("broken", "")
    fresh.settings(execution=SETTINGS["execution"])
    fresh.study(methods={"brittle": None, **STUDY["methods"]})
    said = fresh.snakemake(REPORT, exit_status=1)
    assert said.count(": train ") == 1, "seconds of work are one job"
    assert "this seed has no luck" in said
    assert "7 of 8 runs done, 1 failed" in said
    missing = [name for name, state in fresh.states().items() if state != "complete"]
    assert missing == ["brittle 1"]
    (fresh.root / "broken").unlink()
    assert fresh.trained(REPORT) == ["brittle 1"]
    before = fresh.records()
    fresh.study(methods={**STUDY["methods"], "fedprox": {"mu": 0.9}, "moon": {"mu": 1.0}})
    assert fresh.snakemake(TABLE).count(": train ") == 1
    assert fresh.since(before) == ["fedprox 0", "fedprox 1", "moon 0", "moon 1"]


def test_both_names_of_the_slurm_profile_lead_to_it(fresh: Project):
    """A job asks a scheduler for the cores of the config, whatever this machine has."""
    fresh.settings(execution={**EXECUTION, "processes": 2, "threads": 500})
    for words in (["slurm"], ["workflow/profiles/slurm"], ["slurm", "--config", "only="]):
        said = fresh.snakemake("--profile", *words, "--dry-run")
        assert said.count(": train ") == 1
        assert "cores=1000, gpu=0, memory=8000 MB, time=20 min" in said
    said = fresh.snakemake("--profile", "slurm", "--config", "cluster=false", "--dry-run")
    assert said.count(": train ") > 1
