"""What a job of Slurm asks of Slurm, and what others ask about it."""

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
"""By the variable that has the number of a job, who gave it."""

PATIENCE = 60.0
"""Seconds in which a command of Slurm answers."""

ALIVE = re.compile("PENDING|RUNNING|CONFIGURING|COMPLETING|SUSPENDED|REQUEUED|RESIZING|SIGNALING")
REASONS = {
    "memory": re.compile("OUT_OF_ME|out of memory|oom.kill|exceeded memory limit", re.IGNORECASE),
    "time": re.compile("TIMEOUT|DUE TO TIME LIMIT"),
    "node": re.compile("NODE_FAIL|BOOT_FAIL|DUE TO NODE FAILURE"),
    "cancelled": re.compile("CANCELLED|PREEMPTED"),
}
"""What a job's state, or what Slurm printed into its log, says of its end; the first counts."""


def attempt(log: str, memory_mb: int) -> Attempt:
    """An attempt by this process."""
    for variable, scheduler in SCHEDULERS.items():
        if job := os.environ.get(variable):
            return Attempt(scheduler, job, log, memory_mb)
    return Attempt(log=log, memory_mb=memory_mb)


def asked_by() -> str:
    """Why this process was asked to leave: its `time` is nearly over, or it is `cancelled`."""
    return "time" if _state(os.environ.get("SLURM_JOB_ID", "")) == "RUNNING" else "cancelled"


def requeue() -> bool:
    """Put this process's job into the queue again, if Slurm only asked it to leave in time."""
    return (
        asked_by() == "time" and _ask("scontrol", "requeue", os.environ["SLURM_JOB_ID"]) is not None
    )


def ended(made: Attempt) -> str:
    """How an attempt of which nobody works any more ended; empty if its job goes on.

    Where Slurm keeps no accounts, it forgets a job after some minutes.
    """
    if made.scheduler != "Slurm":
        return "killed"
    shown = _ask("scontrol", "--oneliner", "show", "job", made.job) or ""
    told = dict(re.findall(r"(JobState|StdOut)=(\S*)", shown))
    if ALIVE.search(told.get("JobState", "")):
        return ""
    states = _ask("sacct", "--jobs", made.job, "--noheader", "--parsable2", "--format=State") or ""
    text = "\n".join([told.get("JobState", ""), states, _tail(Path(told.get("StdOut", "")))])
    return next((reason for reason, words in REASONS.items() if words.search(text)), "killed")


def last(store: Store, run: str, why: Callable[[Attempt], str] = ended) -> Attempt | None:
    """The last attempt at an unfinished run that nobody works on; None if there was none.

    One that did not say how it ended is asked for, and the answer noted.
    """
    made = store.attempts(run)
    if made and not made[-1].ended and (reason := why(made[-1])):
        attempts.close(store.partial(run), reason)
        return replace(made[-1], ended=reason)
    return made[-1] if made else None


def _state(job: str) -> str:
    return (_ask("squeue", "--noheader", "--jobs", job, "--format=%T") or "").strip() if job else ""


def _ask(*command: str) -> str | None:
    """What a command of Slurm says; None where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _tail(log: Path) -> str:
    """The last part of a file, if it is one."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 20_000))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
