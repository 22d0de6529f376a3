"""The attempts at an unfinished run: where each was made, and how it ended.

A process that opens a run to train it leaves ``attempt-N.json`` beside the checkpoint, and says
there how it ended. One that is killed says nothing; who looks later asks the scheduler, and notes
what it says.
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
    """One attempt.

    Attributes:
        scheduler: `Slurm`, `PBS` or `LSF`; empty without one.
        job: The number that it gave.
        log: The file that the process prints to, if it was told.
        memory_mb: What the config gave the job.
        stacked: Whether one checkpoint, with another run, has the state of this one too.
        ended: `error`; `time`, `memory`, `node` or `cancelled`; `killed` where nobody says why;
            empty as long as nobody has asked.
        error: The error that ended it.
    """

    scheduler: str = ""
    job: str = ""
    log: str = ""
    memory_mb: int = 0
    stacked: bool = False
    ended: str = ""
    error: str = ""


def read(folder: Path) -> list[Attempt]:
    """The attempts at the run whose unfinished folder this is, oldest first."""
    return [attempt for _, attempt in sorted(_numbered(folder).items())]


def begin(folder: Path) -> int:
    """The number of the next attempt."""
    return max(_numbered(folder), default=0) + 1


def write(folder: Path, number: int, attempt: Attempt) -> None:
    """Say of an attempt what is known by now; a disk that refuses stops no run."""
    with contextlib.suppress(OSError, FedloomError):
        if folder.is_dir():  # Not so once the run is finished.
            files.write_json(folder / f"attempt-{number}.json", asdict(attempt))


def close(folder: Path, ended: str) -> None:
    """Note how the newest attempt ended, if it did not say so itself."""
    number, attempt = max(_numbered(folder).items(), default=(0, Attempt(ended="error")))
    if not attempt.ended:
        write(folder, number, replace(attempt, ended=ended))


def _numbered(folder: Path) -> dict[int, Attempt]:
    attempts: dict[int, Attempt] = {}
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if name := re.fullmatch(r"attempt-(\d+)\.json", path.name):
                with contextlib.suppress(OSError, ValueError, FedloomError):
                    content = fields.mapping(
                        files.parse_json(path.read_bytes()), Location(path.name)
                    )
                    attempts[int(name[1])] = Attempt(
                        **fields.parse(Attempt, content, Location(path.name))
                    )
    return attempts
