"""Attempts at an unfinished run: their jobs, and how they ended.

A process that opens a run to train it writes ``attempt-N.json`` next to the checkpoint, and notes
there how it ended. A killed process cannot do that; a later process asks the scheduler and notes
the reason.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fl.base import fields, files
from fl.base.errors import FedloomError, Location


@dataclass(frozen=True)
class Attempt:
    """Attempt to train a run.

    Attributes:
        scheduler: `Slurm`, `PBS` or `LSF`; empty without a scheduler.
        job: Number of the scheduler's job.
        log: Log file of the process, if it has one.
        memory_mb: Memory of the job by the config.
        stacked: Whether the checkpoint of another run contains the state of this run.
        restarts: How often Slurm had put the job back into its queue before.
        ended: Reason of the end: `error`, `time`, `memory`, `node`, `preempted`, `requeued` or
            `cancelled`; `killed` for an unknown reason; empty before the reason is known.
        error: Text of the error that ended it.
    """

    scheduler: str = ""
    job: str = ""
    log: str = ""
    memory_mb: int = 0
    stacked: bool = False
    restarts: int = 0
    ended: str = ""
    error: str = ""


def read(folder: Path, start: float = 0.0) -> list[Attempt]:
    """Return the attempts at a run, oldest first.

    Args:
        folder: Folder of the unfinished run.
        start: Time since which attempts count, in seconds since 1970.
    """
    return [attempt for _, attempt in sorted(_numbered(folder, start).items())]


def next_number(folder: Path) -> int:
    """Return the number of the next attempt."""
    return max(_numbered(folder), default=0) + 1


def write(folder: Path, number: int, attempt: Attempt) -> None:
    """Write the file of an attempt; an error of the disk does not stop the run."""
    with contextlib.suppress(OSError, FedloomError):
        if folder.is_dir():  # A finished run has no such folder.
            files.write_json(folder / f"attempt-{number}.json", asdict(attempt))


def close(folder: Path, ended: str) -> None:
    """Note how the newest attempt ended, unless it has noted that itself."""
    number, attempt = max(_numbered(folder).items(), default=(0, Attempt(ended="error")))
    if not attempt.ended:
        write(folder, number, replace(attempt, ended=ended))


def _numbered(folder: Path, start: float = 0.0) -> dict[int, Attempt]:
    attempts: dict[int, Attempt] = {}
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            name = re.fullmatch(r"attempt-(\d+)\.json", path.name)
            if name and path.stat().st_mtime >= start:
                with contextlib.suppress(OSError, ValueError, FedloomError):
                    content = fields.mapping(
                        files.parse_json(path.read_bytes()), Location(path.name)
                    )
                    attempts[int(name[1])] = Attempt(
                        **fields.parse(Attempt, content, Location(path.name))
                    )
    return attempts
