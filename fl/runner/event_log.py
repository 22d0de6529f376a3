"""The log of a run's events, written while it is trained: one line of JSON per event.

``<results>/logs/runs/<run>.jsonl`` is only ever appended to, so it covers all processes that worked
on the run. No part of Fedloom reads it, so a disk that refuses a line stops no run.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl.runner.loggers import Curves, Loggers

if TYPE_CHECKING:
    from fl.engine.simulate import Round

log = logging.getLogger(__name__)


class EventLog:
    """The log of one run, and its curves for other programs where the config asks for them.

    Each event has its ``time``, in UTC. The events are:

    - ``begun``: a process starts or resumes the run after ``round``;
    - ``round``: a round is finished, with ``loss``, the mean over clients;
    - ``left``: the process was asked to leave; the state is saved;
    - ``finished``: with ``state`` and ``seconds``;
    - ``failed``: with ``error``.
    """

    def __init__(self, results: Path, run: str) -> None:
        self._path, self._warned = results / "logs" / "runs" / f"{run}.jsonl", False
        self._loggers: Loggers | None = None

    def begun(
        self, after: int, facts: Mapping[str, Any], names: Sequence[str], curves: Curves
    ) -> None:
        """A process starts or resumes the run after round ``after``.

        Args:
            names: Of the programs that are told of it, see `fl.runner.loggers`.
        """
        self._loggers = Loggers(names, curves, after)
        here = {"host": socket.gethostname(), "process": os.getpid()}
        if "SLURM_JOB_ID" in os.environ:
            here["slurm_job"] = os.environ["SLURM_JOB_ID"]
        self.write("begun", round=after, **here, **facts)

    def round(self, done: Round) -> None:
        """A round is finished."""
        self.write("round", round=done.number, loss=done.loss)
        if self._loggers is not None:
            self._loggers.add(done.number, done.rows)

    def ended(self, event: str, **facts: Any) -> None:
        """The process has stopped working on the run: finished, left or failed."""
        self.write(event, **facts)
        if self._loggers is not None:
            self._loggers.close()
            self._loggers = None

    def write(self, event: str, **facts: Any) -> None:
        """Add a line."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "event": event, **facts}) + "\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # In one piece, so that lines of two processes cannot end up inside each other.
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(handle, line.encode())
            finally:
                os.close(handle)
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning("%s: cannot be written (%s); the run goes on", self._path, error)
