"""What happens to runs, written down while it happens: a line of JSON for each event of a run.

``<results>/logs/runs/<run>.jsonl`` is only ever added to, so that it tells a run's whole story,
over all processes that worked on it. Nothing reads it but people and their tools, so a disk that
refuses a line stops no run.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl.pytorch import tensorboard

if TYPE_CHECKING:
    from fl.simulation.simulate import Round

log = logging.getLogger(__name__)


class EventLog:
    """The log of one run, and its curves in TensorBoard where the config asks for them.

    Events: ``begun`` (round: the one it goes on after), ``round`` (loss: mean over clients),
    ``left`` (as it was asked to, with its state saved), ``finished`` (state, seconds), ``failed``
    (error). Each has its ``time``, in UTC.
    """

    def __init__(self, results: Path, run: str) -> None:
        self._path, self._warned = results / "logs" / "runs" / f"{run}.jsonl", False
        self._board: tensorboard.Board | None = None

    def begun(self, after: int, facts: Mapping[str, Any], curves: Path | None) -> None:
        """A process goes on with the run after round ``after``; ``curves``: a folder for them."""
        if curves is not None:
            self._board = tensorboard.Board(curves, after)
        here = {"host": socket.gethostname(), "process": os.getpid()}
        if "SLURM_JOB_ID" in os.environ:
            here["slurm_job"] = os.environ["SLURM_JOB_ID"]
        self.write("begun", round=after, **here, **facts)

    def round(self, done: Round) -> None:
        """One more round is over."""
        self.write("round", round=done.number, loss=done.loss)
        if self._board is not None:
            self._board.add(done.number, done.rows)

    def ended(self, event: str, **facts: Any) -> None:
        """The process has nothing more to do with the run: finished, left or failed."""
        self.write(event, **facts)
        if self._board is not None:
            self._board.close()
            self._board = None

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
