"""Questions to Slurm: why a job must leave, and how an earlier attempt ended."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fl.store import attempts
from fl.store.attempts import Attempt
from fl.store.store import Store

SCHEDULERS = {"SLURM_JOB_ID": "Slurm", "PBS_JOBID": "PBS", "LSB_JOBID": "LSF"}
"""Schedulers, by the environment variable with the number of a job."""

COMMAND_TIMEOUT = 60.0
"""Seconds after which a command of Slurm counts as failed."""

ACTIVE_STATES = re.compile(
    "PENDING|RUNNING|CONFIGURING|COMPLETING|SUSPENDED|REQUEUED|RESIZING|SIGNALING"
)
PATTERN_BY_REASON = {
    "memory": re.compile("OUT_OF_ME|out of memory|oom.kill|exceeded memory limit", re.IGNORECASE),
    "time": re.compile("TIMEOUT|DUE TO TIME LIMIT"),
    "node": re.compile("NODE_FAIL|BOOT_FAIL|DUE TO NODE FAILURE"),
    "cancelled": re.compile("CANCELLED|PREEMPTED"),
}
"""Patterns of a job's state and its log, by the reason of its end; the first match counts."""


def new_attempt(log: str, memory_mb: int) -> Attempt:
    """Return an attempt of this process.

    Args:
        log: The file to which this process prints.
        memory_mb: The memory of the job.
    """
    for variable, scheduler in SCHEDULERS.items():
        if job := os.environ.get(variable):
            return Attempt(scheduler, job, log, memory_mb)
    return Attempt(log=log, memory_mb=memory_mb)


def leave_reason() -> str:
    """Return why this process must leave: `time` if its time is nearly over, else `cancelled`."""
    return "time" if _state(os.environ.get("SLURM_JOB_ID", "")) == "RUNNING" else "cancelled"


def requeue() -> bool:
    """Requeue the job of this process if it must leave because of its time limit.

    Returns:
        Whether the job is in the queue again.
    """
    if leave_reason() != "time":
        return False
    return _run("scontrol", "requeue", os.environ["SLURM_JOB_ID"]) is not None


def end_reason(attempt: Attempt) -> str:
    """Return how an attempt ended.

    Without accounting, Slurm forgets a job after some minutes.

    Args:
        attempt: An attempt on which no process works.

    Returns:
        The reason, see `fl.store.attempts.Attempt`; empty if its job continues.
    """
    if attempt.scheduler != "Slurm":
        return "killed"
    output = _run("scontrol", "--oneliner", "show", "job", attempt.job) or ""
    job_fields = dict(re.findall(r"(JobState|StdOut)=(\S*)", output))
    if ACTIVE_STATES.search(job_fields.get("JobState", "")):
        return ""
    command = ("sacct", "--jobs", attempt.job, "--noheader", "--parsable2", "--format=State")
    log_end = _read_end(Path(job_fields.get("StdOut", "")))
    text = "\n".join([job_fields.get("JobState", ""), _run(*command) or "", log_end])
    reasons = (reason for reason, p in PATTERN_BY_REASON.items() if p.search(text))
    return next(reasons, "killed")


def last_attempt(
    store: Store, run: str, find_reason: Callable[[Attempt], str] = end_reason
) -> Attempt | None:
    """Return the last attempt at an unfinished run on which no process works.

    If the attempt does not contain how it ended, the reason is found and stored.

    Args:
        store: The store.
        run: Id of the run.
        find_reason: Function that finds how an attempt ended.

    Returns:
        The attempt; None if there was none.
    """
    run_attempts = store.attempts(run)
    if not run_attempts:
        return None
    attempt = run_attempts[-1]
    if not attempt.ended and (reason := find_reason(attempt)):
        attempts.close(store.partial(run), reason)
        return replace(attempt, ended=reason)
    return attempt


def _state(job: str) -> str:
    """Return the state of a job; empty if it is unknown."""
    return (_run("squeue", "--noheader", "--jobs", job, "--format=%T") or "").strip() if job else ""


def _run(*command: str) -> str | None:
    """Return the output of a command of Slurm; None if it fails."""
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=COMMAND_TIMEOUT
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout


def _read_end(log: Path) -> str:
    """Return the end of a log file; empty if it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 20_000))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
