"""Runs that no process has begun: their jobs wait in Slurm's queue, or ended before Python started.

`fl.workflow.submission` records the submissions of jobs, and Slurm knows which of them are in its
queue. The reason for which a job ended early is in the file to which Slurm writes what it prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fl.plan import plan_files
from fl.runner import slurm
from fl.store import attempts
from fl.store.attempts import Attempt
from fl.workflow import submission
from fl.workflow.submission import Submission

MEANINGS = {
    "TimeLimit|Wall": "the job asks for more time than is allowed; lower `minutes`",
    "Held": "the job is held; `scontrol release` lets it go",
    "Max|Grp|Limit": "a limit of your account, partition or quality of service is reached",
    "Priority|Resources": "other jobs come first, or no node is free",
    "Node.*(Down|Avail)|Unavailable": "nodes are reserved or out of order",
}
"""Meanings of Slurm's reasons for which a job waits, by pattern; the first match counts."""

ERROR = re.compile("error|fatal|not found|no such file|denied|no space|quota", re.IGNORECASE)
SNAKEMAKE = re.compile(
    r"Error in (rule|group)|execution failed|RuleException|error log|log:|set -euo|jobid:|shell:"
)
"""Patterns of lines that name an error, and of those that Snakemake adds to every error."""

EQUAL_FAILURES = 3
"""Number of jobs that must end alike before those that remain are given up."""


@dataclass(frozen=True)
class JobState:
    """A submitted job as far as its runs have not begun.

    Attributes:
        name: Name of the job.
        runs: Runs that were missing when it was planned.
        submission: Its last submission.
        state: `waiting`, `running` if Slurm has started it, `interrupted` if it was cancelled, or
            `failed`.
        note: Reason; equal for jobs that wait or ended for the same reason.
        details: Its number in Slurm and its log, as text in brackets; empty if it has none.
    """

    name: str
    runs: list[str]
    submission: Submission
    state: str
    note: str
    details: str = ""


def job_states(results: Path, start: float = 0.0) -> Iterator[JobState]:
    """Yield the submitted jobs, oldest first.

    Args:
        results: Folder of the results.
        start: Time since which submissions count, in seconds since 1970.
    """
    submissions = [pair for pair in submission.read_all(results) if pair[1].time >= start]
    queue = slurm.queue() if submissions else None
    for name, last in sorted(submissions, key=lambda pair: pair[1].time):
        planned = plan_files.read_unchecked(results / "plan" / "jobs" / f"{name}.json").get("runs")
        runs = [str(run) for run in planned] if isinstance(planned, list) else []
        log = _log_of_end(results, name, last)
        details = f" (Slurm job {last.job}, log {log})" if last.job else ""
        if not last.job:
            problem = "Slurm takes no more jobs now" if last.is_waiting else "Slurm refused its job"
            state, note = "waiting" if last.is_waiting else "failed", f"{problem}: {last.message}"
        elif queue is None:
            continue
        elif last.job not in queue:
            text = error_text(log)
            note = f"its job ended before the run began: {text or _unwritten(last.job)}"
            state = "interrupted" if slurm.PATTERN_BY_REASON["cancelled"].search(note) else "failed"
        else:
            activity, reason = queue[last.job]
            state = "waiting" if activity == "PENDING" else "running"
            note = f"its job waits in Slurm's queue: {_explained(reason)}"
            details = f" (Slurm job {last.job})"
        yield JobState(name, runs, last, state, note, details)


def by_run(results: Path) -> dict[str, JobState]:
    """Return the last submitted job of each run."""
    return {run: job for job in job_states(results) for run in job.runs}


def has_begun(job: JobState, store: Path) -> bool:
    """Whether a process has opened one of the job's runs since the job was submitted."""
    return any(
        (store / run).exists() or attempts.read(store / f"{run}.partial", job.submission.time)
        for run in job.runs
    )


def _log_of_end(results: Path, name: str, last: Submission) -> Path:
    """Return the log of the program, if it has printed something, else that of Slurm."""
    path = results / "logs" / "train" / f"{name}.log"
    try:
        status = path.stat()
    except OSError:
        return Path(last.log)
    return path if status.st_size and status.st_mtime >= last.time else Path(last.log)


def error_text(log: Path) -> str:
    """Return the line of a log that says why a job ended; empty if there is no log."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    except OSError:
        return ""
    lines = [line for line in lines if line]
    errors = [line for line in lines if ERROR.search(line) and not SNAKEMAKE.search(line)]
    # A traceback ends with the error; other programs go on to say what follows from it.
    is_traceback = any(line.startswith("Traceback") for line in lines)
    return (errors or lines[-1:] or ["it printed nothing"])[-1 if is_traceback else 0][:300]


def _unwritten(job: str) -> str:
    """Return why a job without a log ended."""
    is_cancelled = slurm.end_reason(Attempt("Slurm", job)) == "cancelled"
    return "CANCELLED" if is_cancelled else "it printed nothing; its log does not exist"


def common_failure(results: Path, store: Path, start: float) -> JobState | None:
    """Return a job if all that were submitted have ended alike, before a process began a run.

    Args:
        results: Folder of the results.
        store: Folder of the runs.
        start: Time since which submissions count, in seconds since 1970.

    Returns:
        One of at least `EQUAL_FAILURES` jobs whose errors differ in numbers only; else None.
    """
    jobs = list(job_states(results, start))
    failed = [job for job in jobs if job.state == "failed"]
    texts = {re.sub(r"\d+", "#", job.note) for job in failed}
    if (
        len(failed) < EQUAL_FAILURES
        or len(texts) > 1
        or any(job.state == "running" for job in jobs)
    ):
        return None
    return None if any(has_begun(job, store) for job in jobs) else failed[-1]


def _explained(reason: str) -> str:
    meaning = next((text for pattern, text in MEANINGS.items() if re.search(pattern, reason)), "")
    return f"{reason} ({meaning})" if meaning else reason
