"""Real Snakemake, real Slurm: what it makes of jobs must not show in the results."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal

import project
import pytest
import yaml
from clustered import Clustered, RealClustered
from project import REPOSITORY, SETTINGS, STUDY, fl

pytestmark = [pytest.mark.graph, pytest.mark.cluster]

EXECUTION = {
    **SETTINGS["execution"],
    **{"gpus": 1, "slurm_partition": "gpu", "memory_mb": 1500, "minutes": 20},
}
TABLE = "results/tables/quickstart.parquet"


def test_the_quickstart_is_the_same_as_without_and_an_edit_meanwhile_changes_nothing(
    clustered: Clustered,
) -> None:
    """Few jobs with GPUs, queued while config and code are edited; the table is that of a local
    run."""
    study = REPOSITORY / "config" / "studies" / "quickstart.yaml"
    shutil.copy(study, clustered.root / "config" / "studies")
    clustered.edit("config/studies/quickstart.yaml", "rounds: 20", "rounds: 6")
    shared = {"backend": "stacked", "run_minutes": 1, "merge_minutes": 6}
    shared |= {"gpu_type": "a100", "account": "lab", "qos": "high", "constraint": "fast"}
    settings = {"studies": ["quickstart"], "execution": {**EXECUTION, **shared}}
    clustered.settings(**settings)
    here = project.copy(clustered, clustered.root.with_name("here"))
    local = here.start(TABLE)
    process = clustered.submit("results/report/quickstart.html")
    clustered.until(lambda: clustered.cluster.jobs(clustered.root))
    clustered.edit("config/studies/quickstart.yaml", "lr: 0.05", "lr: 0.5")
    clustered.edit("config/studies/quickstart.yaml", "rounds: 6", "rounds: 3")
    clustered.edit("fl/methods/fedprox.py", "ProximalTerm(self.mu)", "ProximalTerm(1.5 * self.mu)")
    clustered.append("fl/engine/simulate.py", "\nNONSENSE = ")
    said = clustered.end(process)
    jobs = clustered.cluster.jobs(clustered.root)
    assert len(jobs) == 3, "two of two bundles each, then one that starts from them"
    assert {job.state for job in jobs} == {"COMPLETED"}
    assert {job.gpus for job in jobs} == {"gres:gpu:a100:1"}
    [shown] = {(job.account, job.features) for job in jobs}
    assert shown == ("lab", "fast")
    assert all("-on-digits-dirichlet-clients-8" in job.name for job in jobs)
    assert said.count(": train ") == 3
    assert "15 of 15 runs done" in said

    output, _ = local.communicate(timeout=900)
    assert local.returncode == 0, output
    assert (clustered.root / TABLE).read_bytes() == (here.root / TABLE).read_bytes()


def test_whatever_befalls_a_job_its_runs_go_on_and_the_others_too(clustered: Clustered) -> None:
    """Cancelled, requeued, out of time, out of memory, broken: all at once."""
    clustered = RealClustered(clustered.root, clustered.cluster, clustered.started)
    slow = ("cancelled", "requeued", "late")
    methods = {name: {"method": "slow", "until": f"{name}.over"} for name in slow}
    late = {"minutes": 3, "checkpoint_every": 1000}
    clustered.study(
        seeds=[0],
        training={**STUDY["training"], "rounds": 120},
        methods={
            "fedavg": {"execution": {"slurm_partition": "cpu", "gpus": 0}},
            **methods,
            "late": {**methods["late"], "execution": late},
            "hungry": {"megabytes": 1000, "execution": {"memory_mb": 1100}},
            "broken": None,
            "fedprox": {
                "execution": {"slurm_partition": "cpu", "gpus": 0, "processes": 2, "threads": 3}
            },
        },
    )
    settings = {"plugins": ["lab"], "execution": EXECUTION}
    clustered.settings(**settings)
    # A minute is the shortest limit that Slurm knows; it asks up to half a minute too early.
    clustered.edit("slurm/config.yaml", "TERM@120", "TERM@105")
    process = clustered.submit("--retries", "2")

    def over(name: str) -> None:
        (clustered.root / f"{name}.over").touch()

    # Cancelled, while the config is edited and saved half way.
    clustered.until(lambda: clustered.rounds("cancelled 0") >= 5)
    text = yaml.safe_dump({**SETTINGS, **settings})
    clustered.write("config/config.yaml", "studies: [")
    over("cancelled")
    clustered.cluster.ask("scancel", clustered.jobs("cancelled 0")[0].id)
    # Requeued.
    clustered.until(lambda: clustered.rounds("requeued 0") >= 5)
    over("requeued")
    clustered.cluster.ask("scontrol", "requeue", clustered.jobs("requeued 0")[0].id)
    clustered.until(lambda: clustered.ended("requeued 0") == "requeued")
    # Out of time.
    clustered.until(lambda: clustered.rounds("late 0") > 0)
    over("late")
    clustered.until(lambda: clustered.jobs("late 0")[0].restarts)
    clustered.write("config/config.yaml", text)
    said = clustered.end(process, exit_status=1)

    # These three go on where they were, to the same bytes.
    first, second = clustered.jobs("cancelled 0")
    assert (first.state, second.state) == ("CANCELLED", "COMPLETED")
    [requeued] = clustered.jobs("requeued 0")
    assert requeued.state == "COMPLETED"
    [late] = clustered.jobs("late 0")
    assert (late.state, late.memory) == ("COMPLETED", "1500M"), "left by itself, at no cost"
    for name in slow:
        assert 0 < clustered.resumed(f"{name} 0") < 120
        assert clustered.metrics(f"{name} 0") == clustered.undisturbed(f"{name} 0")

    # Out of memory: tried again with twice as much.
    first, second = clustered.jobs("hungry 0")
    assert (first.state, first.memory) == ("FAILED", "1100M")
    assert (second.state, second.memory) == ("COMPLETED", "2200M")

    # Two that nothing befalls have the resources that they ask for.
    [plain] = clustered.jobs("fedavg 0")
    assert (plain.state, plain.gpus) == ("COMPLETED", ""), "on nodes without GPUs"
    [several] = clustered.jobs("fedprox 0")
    assert (several.state, several.cpus) == ("COMPLETED", 6), "three cores for each process"
    record = clustered.root / "results" / "runs" / clustered.run("fedprox 0") / "run.json"
    assert json.loads(record.read_text())["execution"]["processes"] == 2
    assert clustered.metrics("fedprox 0") == clustered.undisturbed("fedprox 0")
    # The broken one is given up and takes no other with it.
    assert [job.state for job in clustered.jobs("broken 0")] == ["FAILED"] * 2, "not a third time"
    assert str(clustered.log("broken 0").relative_to(clustered.root)) in said
    assert "this method has no luck" in said
    done = {*slow, "fedavg", "hungry", "fedprox"}
    assert clustered.states() == {f"{name} 0": "complete" for name in done} | {
        "broken 0": "missing"
    }
    assert "1 missing" in clustered.report()
    # The end names it, with its job and its log.
    end = said[said.index("Some jobs failed.") :].splitlines()
    assert len(end) == 4, "Snakemake says no more"
    run, number = clustered.run("broken 0"), clustered.jobs("broken 0")[-1].id
    assert end[1].startswith(f"  {run}  Broken on ")
    told = re.search(rf"no luck \(Slurm job {number}, log (\S+)\)$", end[1])
    assert told is not None, end[1]
    log = clustered.root / told[1]
    assert "this method has no luck" in log.read_text()
    assert len([*log.parent.glob(f"{log.name.partition('.')[0]}.*.log")]) == 2, "of each attempt"


def test_jobs_that_outlive_their_snakemake_are_not_done_twice(clustered: Clustered) -> None:
    clustered.study(
        seeds=[0],
        training={**STUDY["training"], "rounds": 60},
        methods={"fedavg": None, "slow": {"until": "slow.over"}},
    )
    clustered.settings(plugins=["lab"], execution={**EXECUTION, "checkpoint_every": 1})
    killed = clustered.submit()
    clustered.until(lambda: clustered.rounds("slow 0") >= 2)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait(60)
    process = clustered.submit()
    clustered.until(lambda: len(clustered.jobs("slow 0")) == 2)
    clustered.until(lambda: "waiting for" in clustered.told("slow 0"))
    (clustered.root / "slow.over").touch()
    clustered.end(process)
    assert {job.state for job in clustered.jobs("slow 0")} == {"COMPLETED"}
    assert "already there" in clustered.told("slow 0")
    assert clustered.metrics("slow 0") == clustered.undisturbed("slow 0")


def test_jobs_that_cannot_begin_are_named_and_the_rest_is_not_tried(clustered: Clustered) -> None:
    """`srun` fails on all nodes, before Python starts."""
    broken = clustered.root / "broken"
    broken.mkdir()
    error = "srun: error: task 0 launch failed: Error configuring interconnect"
    (broken / "srun").write_text(f"#!/bin/sh\necho '{error}' >&2\nexit 1\n")
    (broken / "srun").chmod(0o755)
    clustered.study(seeds=[0], methods=dict.fromkeys(("fedavg", "fedprox", "local", "moon")))
    clustered.settings(execution={**EXECUTION, "minutes": 240})
    path = f"{broken}:{clustered.cluster.environment['PATH']}"
    process = clustered.submit("--slurm-init-seconds-before-status-checks", "15", PATH=path)
    said = clustered.end(process, exit_status=1, within=300)
    jobs = clustered.cluster.jobs(clustered.root)
    assert 4 <= len(jobs) <= 8, (
        "tried once, or as often as Snakemake was faster, but not four times"
    )
    assert re.search("60 minutes .*240.*partition gpu", said)
    assert error in said
    names = clustered.cluster.ask("squeue", "--noheader", "--states=all", "--format=%j")
    assert "small_fedloom_" in names
    told = fl(clustered, "status", **clustered.cluster.environment)
    assert re.search(rf"failed +4 runs: .*{re.escape(error)} \(Slurm job ", told)


def test_overrides_and_a_part_of_the_seeds_reach_the_jobs(clustered: Clustered) -> None:
    clustered.settings(execution={**EXECUTION, "slurm_partition": "cpu", "gpus": 0})
    words = 'studies=["small", "rounds=1", "methods.fedprox.mu=[0.5, 1]"]'
    clustered.end(clustered.submit("selected", "--config", words, "only=seed=1"))
    name = "small,methods.fedprox.mu=[0.5,1],rounds=1"
    planned = clustered.names(name)
    seeds = [planned[path.parent.name] for path in clustered.root.glob("results/runs/*/run.json")]
    assert sorted(seeds) == ["fedavg 1", "fedavg-ft 1", "fedprox 1", "fedprox 1"]
    clustered.end(clustered.submit("--config", words))
    assert clustered.records().keys() == planned.keys()
    assert (clustered.root / "results" / "report" / f"{name}.html").exists()
