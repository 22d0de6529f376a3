"""Questions to the scheduler before jobs are submitted: does it answer, how long may jobs be?"""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Iterable
from typing import Any

from fl.base.errors import FedloomError
from fl.plan.config import Execution

TIMEOUT = 60.0
"""Seconds in which a scheduler must answer."""

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
        _ask("sinfo", "--noheader", "--format=%P")
    except (OSError, subprocess.SubprocessError) as error:
        message = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
        [reason, *_] = message.strip().splitlines() or [str(error)]
        raise FedloomError(
            f"Slurm does not answer on this machine ({reason})",
            advice="use a machine on which `sinfo` lists partitions, or leave out --profile slurm "
            "to train on this machine",
        ) from None
    try:
        _ask("sacct", "--noheader", "--allocations")
    except (OSError, subprocess.SubprocessError):
        settings.status_command = "squeue"


def time_limits() -> dict[str, float]:
    """Return the longest time of a job in minutes, by Slurm's partition; `""` is the default one.

    A partition without a limit is left out; so are all if Slurm does not answer.
    """
    try:
        lines = _ask("sinfo", "--noheader", "--format=%P|%l").splitlines()
    except (OSError, subprocess.SubprocessError):
        return {}
    limits: dict[str, float] = {}
    for name, _, limit in (line.strip().partition("|") for line in lines):
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


def name_jobs(executor: Any, studies: Iterable[str]) -> None:
    """Let the names of jobs, which `squeue` shows, begin with the study.

    Args:
        executor: Snakemake's executor, whose plugin finds its jobs by their common name.
        studies: Names of the studies.
    """
    names = list(studies)
    suffix = f"-and-{len(names) - 1}-more" if len(names) > 1 else ""
    executor.run_uuid = f"{names[0][:40]}{suffix}_{executor.run_uuid}"


def _ask(*command: str) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=TIMEOUT
    ).stdout
