"""Logs of a run while it is trained: events as lines of JSON, and curves for other programs.

``<results>/logs/runs/<run>.jsonl`` has one line per event. It is only appended to, so it covers all
processes that worked on the run. Fedloom does not read it, so a failing disk stops no run.

Other programs get curves by a seam, if the config lists them, as in ``execution: {log: [mlflow]}``.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fl.base.seams import Seam

if TYPE_CHECKING:
    import pandas as pd

    from fl.engine.simulate import Round

log = logging.getLogger(__name__)

JsonValue = str | int | float | bool | None


@dataclass(frozen=True)
class CurveTarget:
    """The run to which curves belong.

    Attributes:
        run: Id of the run.
        title: Title of the run's bundle.
        seed: Seed of the run.
        folder: Folder of all logs.
    """

    run: str
    title: str
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        """A short name of the run for people."""
        return f"seed-{self.seed}-{self.run[:6]}"


class Curves(Protocol):
    """Programs that receive the curves of one run."""

    def add(self, round_: int, rows: pd.DataFrame) -> None:
        """Add a round.

        Args:
            round_: Number of the round.
            rows: Its metrics, in the columns of `fl.base.schema.METRIC_COLUMNS`.
        """

    def close(self) -> None:
        """Write everything out."""


CURVES = Seam[Callable[[Sequence[str], CurveTarget, int], Curves]]("curves")
"""Functions that open the programs of ``execution.log``, by their names, for a run with so many
completed rounds.
"""


class RunLog:
    """The log of one run, and its curves for other programs.

    Each event has its ``time``, in UTC. The events are:

    - ``begun``: a process starts or resumes the run after ``round``;
    - ``round``: a round is finished, with ``loss``, the mean over clients;
    - ``left``: the process was asked to leave; the state is saved;
    - ``finished``: with ``state`` and ``seconds``;
    - ``failed``: with ``error``.

    Args:
        results: Folder of results.
        run: Id of the run.
    """

    def __init__(self, results: Path, run: str) -> None:
        self._path, self._has_warned = results / "logs" / "runs" / f"{run}.jsonl", False
        self._curves: list[Curves] = []

    def begin(
        self, completed: int, backend: str, programs: Sequence[str], target: CurveTarget
    ) -> None:
        """Log that a process starts or resumes the run.

        Args:
            completed: Number of completed rounds.
            backend: Name of the backend.
            programs: Programs that receive curves.
            target: The run to which curves belong.
        """
        self._curves = [begin(programs, target, completed) for begin in CURVES.hooks()]
        process: dict[str, JsonValue] = {"host": socket.gethostname(), "process": os.getpid()}
        if "SLURM_JOB_ID" in os.environ:
            process["slurm_job"] = os.environ["SLURM_JOB_ID"]
        self._write("begun", {"round": completed, **process, "backend": backend})

    def add_round(self, finished: Round) -> None:
        """Log a finished round."""
        self._write("round", {"round": finished.number, "loss": finished.loss})
        for curves in self._curves:
            curves.add(finished.number, finished.rows)

    def end(self, event: str, **facts: JsonValue) -> None:
        """Log that the process has stopped working on the run.

        Args:
            event: ``finished``, ``left`` or ``failed``.
            facts: Further entries of the line.
        """
        self._write(event, facts)
        for curves in self._curves:
            curves.close()
        self._curves = []

    def _write(self, event: str, facts: Mapping[str, JsonValue]) -> None:
        """Append a line."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": time, "event": event, **facts}) + "\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # One call writes the line, so that lines of two processes are never mixed.
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(handle, line.encode())
            finally:
                os.close(handle)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                log.warning("%s: cannot be written (%s); the run continues", self._path, error)
