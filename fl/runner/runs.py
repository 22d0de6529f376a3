"""The runs of a bundle in a job: their workspaces, their logs, and their failures."""

from __future__ import annotations

import contextlib
import logging
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fl.engine.simulate import Round
from fl.plan.bundle import Bundle, Member
from fl.runner import memory
from fl.runner.event_log import EventLog
from fl.runner.leaving import Leaving
from fl.runner.loggers import Curves
from fl.runner.progress import Showing
from fl.store.workspace import Workspace

logger = logging.getLogger(__name__)

Lockstep = Callable[..., Iterator[dict[str, Round]]]


class Runs:
    """The runs of a bundle.

    Attributes:
        lockstep: `fl.engine.simulate.lockstep`, or where processes are several, that of all.
        showing: What shows progress.
        members: By id.
        workspaces: Of the runs that this process computes, by id.
        logs: By id.
        failed: A line for each failed run.
        costs: The costs of a run, once one of them is finished; the runs differ only in their seed.
    """

    def __init__(
        self,
        bundle: Bundle,
        leaving: Leaving,
        lockstep: Lockstep,
        showing: Showing,
    ) -> None:
        self.bundle, self.leaving, self.lockstep = bundle, leaving, lockstep
        self.showing = showing
        self.members: dict[str, Member] = {member.run: member for member in bundle.runs}
        self.workspaces: dict[str, Workspace] = {}
        self.logs = {run: EventLog(Path(bundle.results), run) for run in self.members}
        self.failed: list[str] = []
        self.costs: dict[str, Any] | None = None
        self._traces: set[str] = set()

    def name(self, run: str) -> str:
        """A run's name in messages."""
        return f"{run} ({self.bundle.title}, seed {self.members[run].seed})"

    @contextlib.contextmanager
    def failing(self, *runs: str) -> Iterator[None]:
        """A context in which an error is recorded as the runs' failure."""
        try:
            yield
        except Exception as error:
            # Ctrl-C ends a compiler too, which is no failure of the run.
            self.leaving.now("at an error on the way; what a checkpoint has is kept")
            text = memory.told(error)
            for run in runs:
                self.failed.append(f"{self.name(run)}: {text}")
                self.logs[run].ended("failed", error=text)
                if run in self.workspaces:
                    self.workspaces[run].note(ended="error", error=text)
            names = ", ".join(map(self.name, runs))
            if memory.known(error):
                logger.error("%s: %s", names, text)
            else:
                self._trace(names, traceback.format_exc())

    def _trace(self, names: str, trace: str) -> None:
        """Log where an error came from, once for all runs that it ended."""
        logger.error("%s failed%s", names, " likewise" if trace in self._traces else f":\n{trace}")
        self._traces.add(trace)

    def curves(self, run: str) -> Curves:
        """Whose curves other programs are told of."""
        title = re.sub(r"[^\w.=()-]+", "-", self.bundle.title)[:100]
        logs = Path(self.bundle.results) / "logs"
        return Curves(run, title, self.members[run].seed, logs)
