"""Submissions of jobs to Slurm, and those jobs whose runs no process has begun.

Each training job has a file in ``logs/submissions`` of the results, which `fl.workflow.sbatch`
writes, and Slurm knows which jobs are in its queue. The other jobs have ended. If no process has
begun their runs, the reason is in the file to which Slurm writes what the job prints.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from fl.base import fields, files
from fl.base.errors import FedloomError, Location
from fl.plan import plan_files
from fl.runner import slurm
from fl.store import workspace
from fl.store.workspace import Attempt

START_VARIABLE = "FEDLOOM_START"
"""Environment variable of Snakemake and its jobs: the time of its start, in seconds since 1970."""

MEANING_BY_PATTERN = {
    "TimeLimit|Wall": "the job asks for more time than is allowed; lower `minutes`",
    "Held": "the job is held; `scontrol release` lets it go",
    "Max|Grp|Limit": "a limit of your account, partition or quality of service is reached",
    "Priority|Resources": "other jobs come first, or no node is free",
    "Node.*(Down|Avail)|Unavailable": "nodes are reserved or out of order",
}
"""Meanings of Slurm's reasons for which a job waits, by pattern; the first match counts."""

ERROR_LINE = re.compile("error|fatal|not found|no such file|denied|no space|quota", re.IGNORECASE)
SNAKEMAKE_LINE = re.compile(
    r"Error in (rule|group)|execution failed|RuleException|error log|log:|set -euo|jobid:|shell:"
)
"""Patterns of lines that name an error, and of those that Snakemake adds to every error."""

EQUAL_FAILURES = 3
"""Number of jobs that must end alike before those that remain are given up."""


@dataclass(frozen=True)
class Submission:
    """Last submission of a training job.

    Attributes:
        job: Slurm's number of the job; empty if Slurm has not accepted it.
        log: File to which Slurm writes what the job prints.
        time: Time of the submission, in seconds since 1970.
        message: Error of Slurm.
        is_waiting: Whether the job is being submitted again and again, as the queue is full.
    """

    job: str = ""
    log: str = ""
    time: float = 0.0
    message: str = ""
    is_waiting: bool = False


def repeated_error_in_session(store: Path, runs: Iterable[str]) -> str:
    """Return the `repeated_error` since the start of the Snakemake that started this process.

    Schedulers other than Slurm start the job, which then does not train.
    """
    start = os.environ.get(START_VARIABLE)
    return repeated_error(store, runs, float(start)) if start else ""


def repeated_error_of_job(results: Path, job: str, start: float) -> str:
    """Return the `repeated_error` of a planned job; empty if its plan cannot be read."""
    try:
        planned = files.parse_json(plan_files.file_of(results, "jobs", job).read_bytes())
        return repeated_error(Path(planned["store"]), planned["runs"], start)
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def repeated_error(store: Path, runs: Iterable[str], start: float) -> str:
    """Return the error with which the last two attempts at all missing runs of a job ended.

    Args:
        store: Folder of the runs.
        runs: Runs of the job.
        start: Time since which attempts count: that of the start of Snakemake.

    Returns:
        The error; empty if the job is worth another attempt.
    """
    errors = {_repeated_error(store / f"{r}.partial", start) for r in runs if _is_missing(store, r)}
    return "" if "" in errors else min(errors, default="")


def _is_missing(store: Path, run: str) -> bool:
    return not (store / run / "run.json").exists()


def _repeated_error(partial: Path, start: float) -> str:
    last = workspace.read_attempts(partial, start)[-2:]
    is_repeated = len(last) == 2 and last[0].error == last[1].error
    return last[0].error if is_repeated and all(a.ended == "error" for a in last) else ""


def read_all(results: Path) -> Iterator[tuple[str, Submission]]:
    """Yield the training jobs and their last submissions."""
    for path in sorted((results / "logs" / "submissions").glob("*.json")):
        location = Location(str(path))
        try:
            content = fields.mapping(files.parse_json(path.read_bytes()), location)
            yield path.stem, Submission(**fields.parse(Submission, content, location))
        except (OSError, ValueError, FedloomError):
            continue  # It is being written, or another version has written it.


def write(path: Path, submission: Submission) -> None:
    """Write a submission; an error of the disk is printed, and stops no job."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(path, asdict(submission))
    except OSError as error:
        print(f"fedloom: {path}: {error}", file=sys.stderr)


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
    submissions = [pair for pair in read_all(results) if pair[1].time >= start]
    queue = slurm.queue() if submissions else None
    for name, last in sorted(submissions, key=lambda pair: pair[1].time):
        planned = plan_files.read_unchecked(plan_files.file_of(results, "jobs", name)).get("runs")
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


def jobs_by_run(results: Path) -> dict[str, JobState]:
    """Return the last submitted job of each run."""
    return {run: job for job in job_states(results) for run in job.runs}


def has_begun(job: JobState, store: Path) -> bool:
    """Whether a process has opened one of the job's runs since the job was submitted."""
    return any(
        (store / run).exists()
        or workspace.read_attempts(store / f"{run}.partial", job.submission.time)
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
    errors = [line for line in lines if ERROR_LINE.search(line) and not SNAKEMAKE_LINE.search(line)]
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
    meaning = next(
        (text for pattern, text in MEANING_BY_PATTERN.items() if re.search(pattern, reason)), ""
    )
    return f"{reason} ({meaning})" if meaning else reason
