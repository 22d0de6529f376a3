"""The program `sbatch` that Snakemake finds first: it waits while Slurm accepts no more jobs.

Snakemake's plugin counts every refusal as a failed attempt of a job, and submits the job again at
once. `install` puts a folder first in PATH, whose `sbatch` is this module. It passes its arguments
to the real one. While Slurm accepts no more jobs, it waits and asks again. A job that failed twice
with the same errors is not submitted a third time. `fl.workflow.submission` keeps Slurm's answers.

A subclass of the plugin's executor would be no shorter: the plugin has no hook between Slurm's
answer and the failed attempt, so it would override private methods, and read the answer out of a
sentence.
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
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fl.runner import slurm
from fl.workflow import submission
from fl.workflow.submission import START_VARIABLE, Submission

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

ACCEPTS_JOBS = "accepts-jobs"
"""File beside the program, which is there as long as Snakemake wants jobs to be submitted."""

LAUNCH = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from fl.workflow import sbatch; "
    "sys.exit(sbatch.main(sys.argv[1:]))"
)


def name_jobs(executor: Any, studies: Iterable[str]) -> None:
    """Let the names of jobs, which `squeue` shows, begin with the study.

    Args:
        executor: Snakemake's executor, whose plugin finds its jobs by their common name.
        studies: Names of the studies.
    """
    names = list(studies)
    suffix = f"-and-{len(names) - 1}-more" if len(names) > 1 else ""
    # Snakemake asks Slurm for jobs by name, where a comma would divide names.
    first = re.sub(r"[^\w.-]+", "-", names[0])[:40]
    executor.run_uuid = f"{first}{suffix}_{executor.run_uuid}"


def install(results: Path) -> Path | None:
    """Put this program before `sbatch` in PATH, until the end of this process.

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
    (folder / ACCEPTS_JOBS).touch()
    os.environ["PATH"] = os.pathsep.join([str(folder), os.environ.get("PATH", "")])
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def stop(folder: Path) -> None:
    """Refuse all further jobs; submissions that wait for the queue end within a second.

    Snakemake's plugin goes on to submit those jobs that it has begun with.
    """
    (folder / ACCEPTS_JOBS).unlink(missing_ok=True)


def main(arguments: Sequence[str]) -> int:
    """Submit a job, and wait while the queue is full; return the exit status of `sbatch`."""
    folder, program, results, start, snakemake, *words = arguments
    if not _is_wanted(Path(folder), int(snakemake)):
        return 1
    job = _option(words, "--comment").partition(TRAIN)[2]
    record = Path(results) / "logs" / "submissions" / f"{job}.json"
    if job and (error := submission.repeated_error_of_job(Path(results), job, float(start))):
        print(f"fedloom: not submitted again: two attempts ended with {error}", file=sys.stderr)
        return 1

    def note(number: str, message: str, is_waiting: bool) -> None:
        """Write the submission of a training job."""
        if job:
            log = Path(_option(words, "-D"), _option(words, "--output").replace("%j", number))
            last = Submission(number, str(log), time.time(), _line(message), is_waiting)
            submission.write(record, last)

    def is_wanted() -> bool:
        return _is_wanted(Path(folder), int(snakemake))

    patience = PATIENCE_SECONDS
    while True:
        result = _submit([program, *words], lambda message: note("", message, True), is_wanted)
        is_full = bool(result.returncode and FULL.search(result.stderr))
        is_closed = is_full and slurm.accepts_no_jobs(
            _option(words, "--account"), _option(words, "--qos")
        )
        if is_full and slurm.queue() == {}:  # No job of the user will make room by its end.
            patience -= PAUSE_SECONDS
        is_waiting = is_full and not is_closed and patience > 0
        note(result.stdout.strip().partition(";")[0], result.stderr, is_waiting)
        if not is_waiting or not _wait(is_wanted):
            sys.stdout.write(result.stdout)
            sys.stderr.write(result.stderr)
            if is_closed:
                print("fedloom: a limit of 0 jobs is no matter of time", file=sys.stderr)
            return result.returncode


def _submit(
    command: Sequence[str], note: Callable[[str], None], is_wanted: Callable[[], bool]
) -> subprocess.CompletedProcess[str]:
    """Call `sbatch`, which waits by itself for minutes while Slurm takes no jobs.

    Args:
        command: The program and its arguments.
        note: Function that gets what it has printed while it waits.
        is_wanted: Function that says whether the job is still wanted; if not, the program is ended.

    Returns:
        Its exit status and what it printed.
    """
    with tempfile.NamedTemporaryFile("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        noted = ""
        while True:
            try:
                output, _ = process.communicate(timeout=min(1.0, PAUSE_SECONDS))
                break
            except subprocess.TimeoutExpired:
                message = Path(errors.name).read_text(errors="replace")
                if message != noted and FULL.search(message):
                    note(message)
                    noted = message
                if not is_wanted():
                    process.terminate()
        message = Path(errors.name).read_text(errors="replace")
    return subprocess.CompletedProcess(command, process.returncode, output, message)


def _wait(is_wanted: Callable[[], bool]) -> bool:
    """Wait before the next submission; return whether Snakemake still wants it."""
    end = time.monotonic() + PAUSE_SECONDS
    while (is_still_wanted := is_wanted()) and time.monotonic() < end:
        time.sleep(min(1.0, PAUSE_SECONDS))
    return is_still_wanted


def _is_wanted(folder: Path, snakemake: int) -> bool:
    """Whether a process of Snakemake is alive, and wants jobs to be submitted."""
    try:
        os.kill(snakemake, 0)
    except ProcessLookupError:
        return False
    return (folder / ACCEPTS_JOBS).exists()


def _line(text: str) -> str:
    """Return a text without its line breaks."""
    return " ".join(text.split())


def _option(words: Sequence[str], name: str) -> str:
    """Return the value after an option; empty if there is none."""
    return words[words.index(name) + 1] if name in words[:-1] else ""
