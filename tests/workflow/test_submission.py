"""A full queue is waited for, what Slurm says is kept, and jobs that cannot begin are named."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from planning import Planned

from fl.plan.bundle import read as read_bundle
from fl.plan.config import Settings
from fl.store import workspace
from fl.store.workspace import Attempt
from fl.workflow import monitor, sbatch, status, submission
from fl.workflow.submission import Submission

FULL = (
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit "
    "limit, user's size and/or time limits)"
)
BROKEN = "srun: error: task 0 launch failed: Error configuring interconnect"


class Slurm:
    """Programs `sbatch` and `squeue`; the first refuses as often as a test wants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._program(
            "sbatch",
            f'[ -s {folder}/refusals ] || {{ echo "7;main"; exit 0; }}\n'
            f"head -n 1 {folder}/refusals >&2; sed -i 1d {folder}/refusals; exit 1",
        )
        self._program("squeue", f"cat {folder}/queue")
        self.queue()
        self.refuse()

    def _program(self, name: str, body: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.folder / name).chmod(0o755)

    def refuse(self, *errors: str) -> None:
        (self.folder / "refusals").write_text("".join(f"{error}\n" for error in errors))

    def queue(self, *rows: str) -> None:
        (self.folder / "queue").write_text("".join(f"{row}\n" for row in rows))


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(sbatch, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(sbatch, "PATIENCE_SECONDS", 0.05)
    return Slurm(folder)


def submit(slurm: Slurm, results: Path, job: str = "job-1") -> int:
    (slurm.folder / sbatch.ACCEPTS_JOBS).touch()
    comment = ["--comment", f"rule_train_wildcards_{job}"]
    words = [*comment, "--output", "slurm/%j.log", "-D", str(results)]
    here = [slurm.folder, slurm.folder / "sbatch", results, time.time() - 60, os.getpid()]
    return sbatch.main([*map(str, here), *words])


def last(results: Path) -> Submission:
    [(_, found)] = submission.read_all(results)
    return found


def test_a_full_queue_is_waited_for(slurm: Slurm, tmp_path: Path, capfd) -> None:
    slurm.queue("6|RUNNING|None")
    slurm.refuse(*[FULL] * 9)
    assert submit(slurm, tmp_path) == 0, "as long as jobs of the user will make room"
    assert capfd.readouterr() == ("7;main\n", "")
    assert (last(tmp_path).job, last(tmp_path).log) == ("7", f"{tmp_path}/slurm/7.log")
    slurm.queue()
    slurm.refuse(*[FULL] * 99)
    assert submit(slurm, tmp_path) == 1, "nothing of the user's is in the queue"
    assert FULL in capfd.readouterr().err
    assert (last(tmp_path).job, last(tmp_path).message) == ("", FULL)
    slurm.refuse("sbatch: error: invalid partition specified: none", FULL)
    assert submit(slurm, tmp_path) == 1
    assert "invalid partition" in last(tmp_path).message
    assert (slurm.folder / "refusals").read_text() == f"{FULL}\n", "that is no matter of time"


@pytest.mark.parametrize(("limits", "status"), [("0|", 1), ("|", 0), ("0|\n50|", 0)])
def test_a_limit_of_no_jobs_is_not_waited_for(
    slurm: Slurm, tmp_path: Path, capfd, limits: str, status: int
) -> None:
    slurm.queue("6|RUNNING|None")
    slurm.refuse(*[FULL] * 9)
    slurm._program("sacctmgr", f"printf '{limits}\\n'")
    assert submit(slurm, tmp_path) == status
    assert ("limit of 0 jobs" in capfd.readouterr().err) == bool(status)
    assert last(tmp_path).is_waiting is False


def test_that_sbatch_waits_by_itself_is_told(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"
    slurm._program(
        "sbatch", f"echo '{busy}' >&2; until [ -e {slurm.folder}/go ]; do sleep 0.05; done; echo 7"
    )
    done: list[int] = []
    thread = threading.Thread(target=lambda: done.append(submit(slurm, tmp_path)))
    thread.start()
    end = time.monotonic() + 60
    while not [*submission.read_all(tmp_path)] and time.monotonic() < end:
        time.sleep(0.05)
    waiting = last(tmp_path)
    (slurm.folder / "go").touch()
    thread.join()
    assert (waiting.is_waiting, waiting.message) == (True, busy)
    assert (done, last(tmp_path).job, last(tmp_path).is_waiting) == ([0], "7", False)


def test_the_program_is_the_sbatch_in_path_until_no_job_is_wanted(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])  # Set back afterwards.
    monkeypatch.setenv(submission.START_VARIABLE, "0.0")
    folder = sbatch.install(tmp_path / "a folder's results")
    assert folder is not None
    slurm.queue("6|RUNNING|None")
    slurm.refuse(*[FULL] * 99)
    command = ["sbatch", "--comment", "rule_train_wildcards_x", "--output", "%j.log"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    records = tmp_path / "a folder's results" / "logs" / "submissions" / "x.json"
    end = time.monotonic() + 60
    while not records.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert json.loads(records.read_text())["is_waiting"]
    assert process.poll() is None
    slurm.refuse(*[FULL] * 9)
    sbatch.stop(folder)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (1, f"{FULL}\n")
    slurm.refuse()
    said = subprocess.run(["sbatch"], capture_output=True, text=True)
    assert (said.returncode, said.stdout) == (1, ""), "Slurm would take it"


def test_the_same_error_twice_is_not_tried_again(
    slurm: Slurm, tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, jobs = tmp_path / "store", tmp_path / "plan" / "jobs"
    jobs.mkdir(parents=True)
    job = {"store": str(store), "runs": ["done", "broken"]}
    (jobs / "job-1.json").write_text(json.dumps(job))
    (store / "done").mkdir(parents=True)
    (store / "done" / "run.json").touch()
    (store / "broken.partial").mkdir()

    def attempt(number: int, error: str, ended: str = "error") -> None:
        path = store / "broken.partial"
        workspace.write_attempt(
            path, number, Attempt("Slurm", str(number), ended=ended, error=error)
        )

    attempt(1, "no luck")
    assert submit(slurm, tmp_path) == 0, "it may have been the node"
    attempt(2, "")
    attempt(2, "", ended="memory")
    assert submit(slurm, tmp_path) == 0
    attempt(3, "no luck")
    attempt(4, "no luck")
    capfd.readouterr()
    assert submit(slurm, tmp_path) == 1
    assert capfd.readouterr().err == (
        "fedloom: not submitted again: two attempts ended with no luck\n"
    )
    monkeypatch.setenv(submission.START_VARIABLE, str(time.time() - 60))
    assert submission.repeated_error_in_session(store, job["runs"]) == "no luck"
    monkeypatch.delenv(submission.START_VARIABLE)
    assert submission.repeated_error_in_session(store, job["runs"]) == ""
    old = time.time() - 3600
    os.utime(store / "broken.partial" / "attempt-3.json", (old, old))
    assert submit(slurm, tmp_path) == 0, (
        "an earlier Snakemake tried it, what was wrong may be mended"
    )


def pretend(results: Path, name: str, runs: list[str], last: Submission, printed: str = "") -> None:
    """Write what is known of a submitted job."""
    for folder in ("plan/jobs", "logs/submissions"):
        (results / folder).mkdir(parents=True, exist_ok=True)
    (results / "plan" / "jobs" / f"{name}.json").write_text(json.dumps({"runs": runs}))
    (results / "logs" / "submissions" / f"{name}.json").write_text(json.dumps(vars(last)))
    if printed:
        Path(last.log).write_text(printed)


def test_runs_whose_jobs_have_not_begun_are_named_with_the_reason(
    slurm: Slurm, planned: Callable[..., Planned], tmp_path: Path
) -> None:
    study = planned(seeds=[0, 1, 2, 3, 4])
    runs, results = study.runs("fedavg"), tmp_path / "submitted"
    log = str(tmp_path / "1.log")
    printed = (
        f"Building DAG of jobs...\n{BROKEN} 12\nError in rule train:\n    jobid: 3\nError: bad\n"
    )
    pretend(results, "a", [runs[0]], Submission("1", log, time.time()), printed)
    pretend(results, "b", [runs[1]], Submission("2", log, time.time()))
    pretend(results, "c", [runs[2]], Submission("3", log, time.time()))
    pretend(results, "d", [runs[3]], Submission("", "", time.time(), FULL, is_waiting=True))
    slurm.queue("2|PENDING|PartitionTimeLimit", "3|RUNNING|None")
    told = status.run_statuses([read_bundle(study.spec("fedavg"))], study.store(), results)
    assert Counter(each.state for each in told) == {"failed": 1, "waiting": 4}
    lines = list(status.unfinished_lines(told))
    ended = f"its job ended before the run began: {BROKEN} 12 (Slurm job 1, log {log})"
    assert lines == [
        f"  failed: 1 run: {ended}",
        "  waiting: 1 run: its job waits in Slurm's queue: PartitionTimeLimit (the job asks for "
        "more time than is allowed; lower `minutes`) (Slurm job 2)",
        f"  waiting: 1 run: Slurm takes no more jobs now: {FULL}",
        "  2 runs not started",
    ]
    program = results / "logs" / "train" / "a.log"
    program.parent.mkdir()
    program.write_text(
        "Traceback (most recent call last):\nImportError: no error\nOSError: libcuda\n"
    )
    told = status.run_statuses([read_bundle(study.spec("fedavg"))], study.store(), results)
    ended = f"its job ended before the run began: OSError: libcuda (Slurm job 1, log {program})"
    assert f"  failed: 1 run: {ended}" in status.unfinished_lines(told)
    bare = status.run_statuses([read_bundle(study.spec("fedavg"))], study.store())
    assert {each.state for each in bare} == {"waiting"}


def test_snakemake_is_stopped_if_all_jobs_end_alike_before_they_begin(
    slurm: Slurm, tmp_path: Path
) -> None:
    store, stopped = tmp_path / "store", list[str]()
    settings = Settings((), results=str(tmp_path), store=str(store))
    watch = monitor.ProgressMonitor(settings, stop_workflow=stopped.append)
    for i in range(3):
        last = Submission(str(i), str(tmp_path / f"{i}.log"), time.time())
        pretend(tmp_path, f"job-{i}", [f"run-{i}"], last, f"{BROKEN} {i}")
        watch._look_at_submissions()
        assert bool(stopped) == (i == 2)
    assert BROKEN in stopped[0]
    assert submission.common_failure(tmp_path, store, 0.0) is not None
    (store / "run-1").mkdir(parents=True)
    assert submission.common_failure(tmp_path, store, 0.0) is None, "one of them has begun"
    (store / "run-1").rmdir()
    (tmp_path / "0.log").write_text("bash: python: command not found")
    assert submission.common_failure(tmp_path, store, 0.0) is None, "another error"
    for i in range(3):
        (tmp_path / f"{i}.log").write_text(f"slurmstepd: error: *** JOB {i} ON node1 CANCELLED ***")
    assert submission.common_failure(tmp_path, store, 0.0) is None, "somebody cancelled them"
    assert {job.state for job in submission.job_states(tmp_path)} == {"interrupted"}


def test_names_of_jobs_begin_with_a_study() -> None:
    executor = SimpleNamespace(run_uuid="fedloom_1-2")
    sbatch.name_jobs(executor, ["quickstart", "small", "large"])
    assert executor.run_uuid == "quickstart-and-2-more_fedloom_1-2"
