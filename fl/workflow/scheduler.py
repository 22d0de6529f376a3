"""Check of the scheduler before jobs are submitted: does it answer, and does it keep accounts?"""

from __future__ import annotations

import subprocess
from typing import Any

from fl.base.errors import FedloomError

TIMEOUT = 60.0
"""Seconds in which a scheduler must answer."""


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


def _ask(*command: str) -> None:
    subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT)
