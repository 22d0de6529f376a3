"""Questions to Slurm: whether it answers, how long jobs may take, and why a job leaves or ended.

Fedloom asks by Slurm's own commands, and goes on without an answer where it can.
"""

from __future__ import annotations

import getpass
import math
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fl.base.errors import FedloomError
from fl.plan.config import Execution
from fl.store import workspace
from fl.store.store import Store
from fl.store.workspace import Attempt

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
    "preempted": re.compile("PREEMPTED|DUE TO PREEMPTION"),
    "requeued": re.compile("REQUEUED|DUE TO JOB REQUEUE"),
    "cancelled": re.compile("CANCELLED"),
}
"""Patterns of a job's state and its log, by the reason of its end; the first match counts."""

FULL_DISK = re.compile("No space left|disk is full|disk quota", re.IGNORECASE)
"""Pattern of the log of a process that could not note its end, as a disk was full."""


MINUTES_PER_UNIT = {"days": 1440, "hours": 60, "minutes": 1, "seconds": 1 / 60}
LIMIT = re.compile(r"(?:(?P<days>\d+)-)?(?:(?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d+)")
"""Pattern of a time limit as `sinfo` prints it."""


def check(executor: str, settings: Any) -> None:
    """Check that Slurm answers; use its queue for the state of jobs if it keeps no accounts.

    Args:
        executor: Name of Snakemake's executor.
        settings: Settings of the executor.

    Raises:
        FedloomError: If Slurm does not answer. Otherwise Snakemake would ask again for every job.
    """
    if executor != "slurm":
        return
    try:
        _answer("sinfo", "--noheader", "--format=%P")
    except (OSError, subprocess.SubprocessError) as error:
        message = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
        [reason, *_] = message.strip().splitlines() or [str(error)]
        raise FedloomError(
            f"Slurm does not answer on this machine ({reason})",
            advice="use a machine on which `sinfo` lists partitions, or leave out --profile slurm "
            "to train on this machine",
        ) from None
    if _run("sacct", "--noheader", "--allocations") is None:
        settings.status_command = "squeue"


def time_limits() -> dict[str, float]:
    """Return the longest time of a job in minutes, by Slurm's partition; `""` is the default one.

    A partition without a limit is left out; so are all if Slurm does not answer.
    """
    lines = _run("sinfo", "--noheader", "--format=%P|%l") or ""
    limits: dict[str, float] = {}
    for name, _, limit in (line.strip().partition("|") for line in lines.splitlines()):
        if match := LIMIT.fullmatch(limit):
            minutes = sum(
                int(n or 0) * MINUTES_PER_UNIT[unit] for unit, n in match.groupdict().items()
            )
            limits[name.removesuffix("*")] = minutes
            if name.endswith("*"):
                limits[""] = minutes
    return limits


def job_minutes(execution: Execution, limits: dict[str, float]) -> int:
    """Return the time that a job asks for: at most what its partition allows.

    Otherwise Slurm would let it wait for ever. A job at its limit goes on from its checkpoint.

    Args:
        execution: Execution of the job.
        limits: The limits of `time_limits`.
    """
    names = (execution.slurm_partition or "").split(",")
    limit = max(limits.get(name, math.inf) for name in names)
    return int(max(1, min(execution.minutes, limit)))


def new_attempt(log: str, memory_mb: int) -> Attempt:
    """Return an attempt of this process.

    Args:
        log: The file to which this process prints.
        memory_mb: The memory of the job.
    """
    for variable, scheduler in SCHEDULERS.items():
        if job := os.environ.get(variable):
            return Attempt(scheduler, job, log, memory_mb, restarts=_own_restarts())
    return Attempt(log=log, memory_mb=memory_mb)


def leave_reason() -> str:
    """Return why this process must leave: `time` if its time is nearly over, or another reason."""
    job_fields = _job_fields(os.environ.get("SLURM_JOB_ID", ""))
    if job_fields.get("JobState") == "RUNNING":
        return "time" if job_fields.get("PreemptTime", "None") == "None" else "preempted"
    log_end = _read_end(job_fields.get("StdOut", ""))
    has_restarted = int(job_fields.get("Restarts", 0)) > _own_restarts()
    return _requeue_reason(log_end) if has_restarted else _first_reason(log_end) or "cancelled"


def requeue() -> bool:
    """Requeue the job of this process, unless Slurm has cancelled or requeued it already.

    Returns:
        Whether the job is in the queue again.
    """
    job = os.environ.get("SLURM_JOB_ID", "")
    if _job_fields(job).get("JobState") != "RUNNING":
        return False
    return _run("scontrol", "requeue", job) is not None


def end_reason(attempt: Attempt) -> str:
    """Return how an attempt ended.

    Without accounting, Slurm forgets a job after some minutes.

    Args:
        attempt: An attempt on which no process works.

    Returns:
        The reason, see `fl.store.workspace.Attempt`; empty if its job continues.
    """
    unnoted = "error" if FULL_DISK.search(_read_end(attempt.log)) else "killed"
    if attempt.scheduler != "Slurm":
        return unnoted
    job_fields = _job_fields(attempt.job)
    has_restarted = int(job_fields.get("Restarts", 0)) > attempt.restarts
    if ACTIVE_STATES.search(job_fields.get("JobState", "")) and not has_restarted:
        return ""
    command = ["sacct", "--jobs", attempt.job, "--noheader", "--parsable2", "--format=State"]
    states = _run(*command, *(["--duplicates"] if has_restarted else [])) or ""
    text = f"{states}\n{_read_end(job_fields.get('StdOut', ''))}"
    if has_restarted:
        return _requeue_reason(text)
    return _first_reason(f"{job_fields.get('JobState', '')}\n{text}") or unnoted


def _requeue_reason(text: str) -> str:
    """Return why Slurm put a job back into its queue, by its states and the end of its log.

    Without accounting nothing tells a node's failure from a request: the log ends with the node.
    """
    reason = _first_reason(text)
    return reason if reason in ("node", "preempted") else "requeued"


def _first_reason(text: str) -> str:
    reasons = (reason for reason, pattern in PATTERN_BY_REASON.items() if pattern.search(text))
    return next(reasons, "")


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
        workspace.close_attempt(store.partial(run), reason)
        return replace(attempt, ended=reason)
    return attempt


def queue() -> dict[str, tuple[str, str]] | None:
    """Return state and reason of the user's jobs in Slurm's queue, by number.

    Returns:
        None if Slurm does not answer.
    """
    output = _run("squeue", "--me", "--noheader", "--format=%i|%T|%r")
    rows = [line.strip().split("|", 2) for line in (output or "").splitlines()]
    return None if output is None else {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}


def accepts_no_jobs(account: str, qos: str) -> bool:
    """Whether Slurm's accounts limit the user's jobs to 0, so that no wait helps.

    Args:
        account: Account of the job; empty: the default one, so that all of the user's must be 0.
        qos: Quality of service of the job; empty: the default one, which is not asked for.
    """
    rows = ["sacctmgr", "--noheader", "--parsable2", "show"]
    of_user = [f"user={getpass.getuser()}", *([f"account={account}"] if account else [])]
    limits = [
        line.split("|")
        for line in (
            _run(*rows, "assoc", "where", *of_user, "format=MaxSubmitJobs,GrpSubmitJobs") or ""
        ).splitlines()
    ]
    if limits and all("0" in values for values in limits):
        return True
    format_ = "format=MaxSubmitPU,MaxSubmitPA,GrpSubmit"
    answer = _run(*rows, "qos", "where", f"name={qos}", format_) if qos else ""
    return "0" in (answer or "").strip().split("|")


def _own_restarts() -> int:
    """Return how often Slurm put the job of this process back into its queue before."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0)


def _job_fields(job: str) -> dict[str, str]:
    """Return what `scontrol` says of a job; empty if it knows no such job."""
    output = _run("scontrol", "--oneliner", "show", "job", job) if job else ""
    return dict(re.findall(r"(JobState|StdOut|Restarts|PreemptTime)=(\S*)", output or ""))


def _answer(*command: str) -> str:
    """Return the output of a command of Slurm; raises the errors of `subprocess.run`."""
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=COMMAND_TIMEOUT
    ).stdout


def _run(*command: str) -> str | None:
    """Return the output of a command of Slurm; None if it fails."""
    try:
        return _answer(*command)
    except (OSError, subprocess.SubprocessError):
        return None


def _read_end(log: str) -> str:
    """Return the end of a log; empty if it cannot be read."""
    try:
        with Path(log).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 20_000))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
