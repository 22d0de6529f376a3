"""Program in front of `sbatch`: it waits while Slurm's queue is full, and records what Slurm says.

Snakemake's plugin counts every refusal as a failed attempt of a job, and submits the job again at
once. `install` puts a folder first in PATH, whose `sbatch` is this module. It passes its arguments
to the real one. While Slurm accepts no more jobs, it waits and asks again. A job that failed twice
with the same errors is not submitted a third time.

Each training job has a file in ``logs/submissions`` of the results, from which `fl.workflow.status`
knows jobs that ended before they began.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fl.base import fields, files
from fl.base.errors import FedloomError, Location
from fl.store import attempts

FULL = re.compile(
    "job submit limit|MaxSubmitJob|GrpSubmitJob|Max(imum)? job limit|temporarily un|timed out"
    "|Unable to contact slurm controller|controller not responding",
    re.IGNORECASE,
)
"""Pattern of the errors after which Slurm accepts the same job later."""

PAUSE_SECONDS = 30.0
"""Seconds between two submissions of a job while the queue is full."""

PATIENCE_SECONDS = 600.0
"""Seconds for which a job is submitted again though the user has no other job in the queue."""

TRAIN = "rule_train_wildcards_"
"""Beginning of the comment that Snakemake's plugin gives to a training job."""

START_VARIABLE = "FEDLOOM_START"
"""Environment variable of Snakemake and its jobs: the time of its start, in seconds since 1970."""

LAUNCH = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from fl.workflow import submission; "
    "sys.exit(submission.main(sys.argv[1:]))"
)


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


def install(results: Path) -> Path | None:
    """Put this program before `sbatch` in PATH, until `uninstall` or the end of this process.

    Args:
        results: Folder of the results.

    Returns:
        The folder in PATH; None if there is no `sbatch`.
    """
    program = shutil.which("sbatch")
    if program is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="fedloom-sbatch-"))
    code = Path(__file__).resolve().parents[2]
    words = [sys.executable, "-P", "-c", LAUNCH, code, folder, program, results.absolute()]
    words = [*words, os.environ[START_VARIABLE], os.getpid()]
    script = folder / "sbatch"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n')
    script.chmod(0o755)
    os.environ["PATH"] = os.pathsep.join([str(folder), os.environ.get("PATH", "")])
    atexit.register(uninstall, folder)
    return folder


def uninstall(folder: Path) -> None:
    """Remove the program; submissions that wait for the queue end within a second."""
    shutil.rmtree(folder, ignore_errors=True)


def main(arguments: Sequence[str]) -> int:
    """Submit a job, and wait while the queue is full; return the exit status of `sbatch`."""
    folder, program, results, start, snakemake, *words = arguments
    job = _option(words, "--comment").partition(TRAIN)[2]
    record = Path(results) / "logs" / "submissions" / f"{job}.json"
    if job and (error := _repeated_job_error(Path(results), job, float(start))):
        print(f"fedloom: not submitted again: two attempts ended with {error}", file=sys.stderr)
        return 1
    patience = PATIENCE_SECONDS
    while True:
        result = subprocess.run([program, *words], capture_output=True, text=True, stdin=None)
        is_full = bool(result.returncode and FULL.search(result.stderr))
        patience -= PAUSE_SECONDS * is_full * (not _has_jobs())
        is_waiting = is_full and patience > 0
        number = result.stdout.strip().partition(";")[0]
        if job:
            log = Path(_option(words, "-D"), _option(words, "--output").replace("%j", number))
            submission = Submission(number, str(log), time.time(), _line(result.stderr), is_waiting)
            _write(record, submission)
        if not is_waiting or not _wait(Path(folder), int(snakemake)):
            sys.stdout.write(result.stdout)
            sys.stderr.write(result.stderr)
            return result.returncode


def _wait(folder: Path, snakemake: int) -> bool:
    """Wait before the next submission; return whether Snakemake still wants it."""
    end = time.monotonic() + PAUSE_SECONDS
    while (is_wanted := folder.exists() and _is_alive(snakemake)) and time.monotonic() < end:
        time.sleep(min(1.0, PAUSE_SECONDS))
    return is_wanted


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _line(text: str) -> str:
    """Return a text without its line breaks."""
    return " ".join(text.split())


def _option(words: Sequence[str], name: str) -> str:
    """Return the value after an option; empty if there is none."""
    return words[words.index(name) + 1] if name in words[:-1] else ""


def _has_jobs() -> bool:
    """Whether the user has jobs in Slurm's queue, after which there is room for others."""
    command = ["squeue", "--me", "--noheader", "--format=%i"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return True
    return bool(result.returncode or result.stdout.strip())


def _repeated_job_error(results: Path, job: str, start: float) -> str:
    try:
        planned = files.parse_json((results / "plan" / "jobs" / f"{job}.json").read_bytes())
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
    last = attempts.read(partial, start)[-2:]
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


def _write(path: Path, submission: Submission) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(path, asdict(submission))
    except OSError as error:
        print(f"fedloom: {path}: {error}", file=sys.stderr)
