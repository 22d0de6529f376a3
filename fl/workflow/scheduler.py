"""Whether the scheduler that jobs are to go to is there at all, and whether it keeps accounts."""

from __future__ import annotations

import subprocess
from typing import Any

from fl.base.errors import FedloomError

PATIENCE = 60.0
"""Seconds in which a scheduler answers."""


def check(executor: str, settings: Any) -> None:
    """Refuse (`FedloomError`) to hand jobs to a Slurm that does not answer: it would be asked again
    for every job. Where it keeps no accounts, its queue is asked how jobs are.

    Args:
        settings: Of Snakemake's executor.
    """
    if executor != "slurm":
        return
    try:
        _ask("sinfo", "--noheader", "--format=%P")
    except (OSError, subprocess.SubprocessError) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
        [reason, *_] = said.strip().splitlines() or [str(error)]
        raise FedloomError(
            f"Slurm does not answer here ({reason}). Allowed: a machine on which `sinfo` lists "
            "partitions; without --profile slurm, Snakemake trains on this one"
        ) from None
    try:
        _ask("sacct", "--noheader", "--allocations")
    except (OSError, subprocess.SubprocessError):
        settings.status_command = "squeue"


def _ask(*command: str) -> None:
    subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
