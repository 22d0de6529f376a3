"""Whether Slurm answers, how long its jobs may take, why one leaves or has ended."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from fl.base.errors import FedloomError
from fl.plan.config import Execution
from fl.runner import slurm
from fl.store.workspace import Attempt
from fl.workflow.status import TEXT_BY_REASON

ENDS = {
    "CANCELLED AT 2026-11-25T21:57:23 DUE TO PREEMPTION ***": "preempted",
    "CANCELLED AT 2026-11-25T21:57:19 DUE TO JOB REQUEUE ***": "requeued",
    "CANCELLED AT 2026-11-25T21:57:19 DUE TO NODE FAILURE ***": "node",
    "CANCELLED AT 2026-11-25T21:57:19 ***": "cancelled",
}
"""Reasons by the end of a job's log, as Slurm 22 and 23 write it."""


class Commands:
    """Programs `scontrol` and `sacct` that answer what a test wants."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("scontrol", "sacct"):
            program = folder / name
            program.write_text(f'#!/bin/sh\necho "$@" >>{folder}/calls\ncat {folder}/{name}.says\n')
            program.chmod(0o755)
        self.answer("RUNNING")

    def answer(self, state: str, log: str = "", states: str = "", **more: object) -> None:
        """Set the job's state and log, the states in the accounts, and other values of the job."""
        path = self._folder / "job.log"
        path.write_text(log)
        values = {"JobId": 7, "JobState": state, "Restarts": 0, "PreemptTime": "None", **more}
        text = " ".join(f"{key}={value}" for key, value in values.items())
        (self._folder / "scontrol.says").write_text(f"{text} StdOut={path}\n")
        (self._folder / "sacct.says").write_text(states)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    made = Commands(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    return made


def test_why_a_job_must_leave(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    assert slurm.leave_reason() == "time"
    commands.answer("RUNNING", PreemptTime="2026-11-25T21:57:15")
    assert slurm.leave_reason() == "preempted", "the grace before it"
    assert slurm.requeue()
    for log, reason in ENDS.items():
        commands.answer("COMPLETING", log, Restarts=int(reason != "cancelled"))
        assert slurm.leave_reason() == reason
        assert not slurm.requeue(), "Slurm has done so, or is not to"
    commands.answer("COMPLETING", "DUE TO PREEMPTION")
    assert slurm.leave_reason() == "preempted", "where preempted jobs are cancelled"
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    commands.answer("COMPLETING", "CANCELLED AT 2026-11-25T21:57:19 ***", Restarts=1)
    assert slurm.leave_reason() == "cancelled"
    assert slurm.new_attempt("", 0).restarts == 1
    assert json.dumps(vars(slurm.new_attempt("", 0)))


def test_how_an_attempt_ended(commands: Commands) -> None:
    attempt = Attempt("Slurm", "7")
    assert slurm.end_reason(attempt) == "", "a silent process of an active job"
    assert "may have failed" in TEXT_BY_REASON[""]
    commands.answer("PENDING", Restarts=1)
    assert slurm.end_reason(attempt) == "requeued", "a node that died takes the log with it"
    commands.answer("RUNNING", Restarts=1, states="NODE_FAIL\nRUNNING\n")
    assert slurm.end_reason(attempt) == "node", "as the accounts know"
    commands.answer("PENDING", "DUE TO PREEMPTION", Restarts=2)
    assert slurm.end_reason(Attempt("Slurm", "7", restarts=1)) == "preempted"
    assert slurm.end_reason(Attempt("Slurm", "7", restarts=2)) == ""
    commands.answer("CANCELLED")
    assert slurm.end_reason(attempt) == "cancelled"
    commands.answer("FAILED", "slurmstepd: error: Detected 1 oom_kill event")
    assert slurm.end_reason(attempt) == "memory"
    assert {*ENDS.values(), *slurm.PATTERN_BY_REASON} <= {*TEXT_BY_REASON}


def test_slurm_has_to_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    slurm.check("local", None)
    settings = SimpleNamespace(status_command="sacct")
    with pytest.raises(
        FedloomError, match=r"^Slurm does not answer on this machine \(.*'sinfo'\). Try: "
    ):
        slurm.check("slurm", settings)
    sinfo = tmp_path / "sinfo"
    sinfo.write_text("#!/bin/sh\necho 'no controller\nat all' >&2\nexit 1\n")
    sinfo.chmod(0o755)
    with pytest.raises(
        FedloomError, match=r"does not answer on this machine \(no controller\)\. Try"
    ):
        slurm.check("slurm", settings)
    sinfo.write_text("#!/bin/sh\necho short\n")
    shutil.copy(sinfo, tmp_path / "sacct")
    slurm.check("slurm", settings)
    assert settings.status_command == "sacct"
    (tmp_path / "sacct").unlink()
    slurm.check("slurm", settings)
    assert settings.status_command == "squeue", "Slurm keeps no accounts"


def test_a_job_asks_for_no_more_time_than_its_partition_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm.time_limits() == {}
    rows = ["gpu*|1:00:00", "long|4-12:00:00", "debug|30:00", "free|infinite", "odd|n/a"]
    answer = "".join(f"echo '{row}'\n" for row in rows)
    (tmp_path / "sinfo").write_text(f"#!/bin/sh\n{answer}")
    (tmp_path / "sinfo").chmod(0o755)
    limits = slurm.time_limits()
    assert limits == {"": 60, "gpu": 60, "long": 6480, "debug": 30}

    def minutes(partition: str | None, wanted: int = 240) -> int:
        execution = Execution(slurm_partition=partition, minutes=wanted)
        return slurm.job_minutes(execution, limits)

    assert [minutes(None), minutes("debug"), minutes("debug,gpu")] == [60, 30, 60]
    assert [minutes(None, 20), minutes("long"), minutes("free")] == [20, 240, 240]


@pytest.mark.parametrize("scheduler", ["Slurm", "PBS"])
def test_a_job_that_a_full_disk_ended_needs_no_more_memory(
    scheduler: str, commands: Commands, tmp_path: Path
) -> None:
    log = tmp_path / "train.log"
    attempt = Attempt(scheduler, "7", str(log))
    commands.answer("FAILED")
    log.write_text("round 3 of 9\n")
    assert slurm.end_reason(attempt) == "killed"
    log.write_text("runs/ab.partial: the disk is full; free some space, then start again\n")
    assert slurm.end_reason(attempt) == "error"
    assert TEXT_BY_REASON["error"]
