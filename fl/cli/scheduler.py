"""Whether the scheduler that jobs are to go to is there at all."""

from __future__ import annotations

import subprocess

from fl.base.errors import FedloomError

PATIENCE = 60.0
"""Seconds in which a scheduler answers."""


def check(executor: str) -> None:
    """Refuse (`FedloomError`) to hand jobs to a Slurm that does not answer: it would be asked again
    for every job.
    """
    if executor != "slurm":
        return
    ask = ["sinfo", "--noheader", "--format=%P"]
    try:
        subprocess.run(ask, capture_output=True, text=True, check=True, timeout=PATIENCE)
    except (OSError, subprocess.SubprocessError) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
        [reason, *_] = said.strip().splitlines() or [str(error)]
        raise FedloomError(
            f"Slurm does not answer here ({reason}); allowed: a machine on which `sinfo` lists "
            "partitions; without --profile slurm, Snakemake trains on this one"
        ) from None
