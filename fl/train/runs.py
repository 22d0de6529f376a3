"""The runs of a bundle as a job holds them: their workspaces, their logs, and what went wrong."""

from __future__ import annotations

import contextlib
import logging
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fl.errors import FedloomError
from fl.planning.bundle import Bundle, Member
from fl.pytorch.memory import exhausted
from fl.store.workspace import Workspace
from fl.train import memory
from fl.train.event_log import EventLog
from fl.train.leaving import Interrupted, Leaving

logger = logging.getLogger(__name__)


class Runs:
    """The runs of a bundle.

    members: by id. workspaces: of those that this process computes. logs: by id. failed: a line for
    each that failed. costs: what each run costs, once one of them has told; they differ in their
    seed only.
    """

    def __init__(self, bundle: Bundle, leaving: Leaving) -> None:
        self.bundle, self.leaving = bundle, leaving
        self.members: dict[str, Member] = {member.run: member for member in bundle.runs}
        self.workspaces: dict[str, Workspace] = {}
        self.logs = {run: EventLog(Path(bundle.results), run) for run in self.members}
        self.failed: list[str] = []
        self.costs: dict[str, Any] | None = None

    def name(self, run: str) -> str:
        """A run as messages say it."""
        return f"{run} ({self.bundle.title}, seed {self.members[run].seed})"

    @contextlib.contextmanager
    def failing(self, *runs: str) -> Iterator[None]:
        """What goes wrong inside is written down as the runs' failure."""
        try:
            yield
        except Interrupted:
            raise
        except Exception as error:
            self.leaving.now()  # Ctrl-C ends a compiler too, which is no failure of the run.
            if exhausted(error):
                error = FedloomError(memory.told(error))
            known = isinstance(error, FedloomError)
            text = str(error) if known else f"{type(error).__name__}: {error}"
            for run in runs:
                self.failed.append(f"{self.name(run)}: {text}")
                self.logs[run].ended("failed", error=text)
                if run in self.workspaces:
                    self.workspaces[run].fail(text)
            names = ", ".join(map(self.name, runs))
            if known:
                logger.error("%s: %s", names, error)
            else:
                logger.error("%s failed:\n%s", names, traceback.format_exc())

    def curves(self, run: str) -> Path | None:
        """Where TensorBoard finds a run, if that is asked for."""
        if not self.bundle.execution.tensorboard:
            return None
        title = re.sub(r"[^\w.=()-]+", "-", self.bundle.title)[:100]
        logs = Path(self.bundle.results) / "logs"
        return logs / "tensorboard" / title / f"seed-{self.members[run].seed}-{run[:6]}"
