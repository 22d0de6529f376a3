"""The runs of a bundle in a job: their workspaces, their logs, and their failures."""

from __future__ import annotations

import contextlib
import logging
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fl.base import error_text
from fl.base.errors import FedloomError
from fl.base.units import first_of
from fl.engine.simulate import Round
from fl.plan.bundle import Bundle, Member
from fl.pytorch.memory import is_out_of_memory
from fl.runner.interruption import LeaveRequest
from fl.runner.progress import MakeDisplay
from fl.runner.run_logs import CurveTarget, RunLog
from fl.store.run_record import Costs, UnknownCosts
from fl.store.workspace import Workspace

logger = logging.getLogger(__name__)

Lockstep = Callable[..., Iterator[dict[str, Round]]]

MEMORY_ADVICE = (
    "lower batch_size, local_epochs, local_steps or a warm-up's steps, take a smaller model, say "
    "`execution: {backend: loop}`, which has one client's batch in memory at a time, or more memory"
)


def is_expected(error: Exception) -> bool:
    """Whether the text of an error is enough, so that it needs no traceback."""
    return is_out_of_memory(error) or isinstance(error, FedloomError)


def describe_error(error: Exception) -> str:
    """Describe an error that ends a run in one line; if memory ran out, with advice."""
    if is_out_of_memory(error):
        [reason, *_] = str(error).strip().splitlines() or [type(error).__name__]
        return f"memory ran out ({reason}); {MEMORY_ADVICE}"
    return str(error) if is_expected(error) else error_text.describe(error)


@dataclass(frozen=True)
class Failure:
    """A failed run.

    Attributes:
        name: The run's id, with its title and seed.
        error: The error in one line.
    """

    name: str
    error: str


def describe_failures(failures: Iterable[Failure]) -> list[str]:
    """Return a line for each error, with the first run that failed by it and how many others."""
    names_by_error: dict[str, list[str]] = {}
    for failure in failures:
        names_by_error.setdefault(failure.error, []).append(failure.name)
    return [f"{first_of(names, 'run')}: {error}" for error, names in names_by_error.items()]


class Runs:
    """The runs of a bundle.

    Attributes:
        bundle: The bundle.
        leave_request: Whether the job was asked to leave.
        lockstep: `fl.engine.simulate.lockstep`, or that of several processes.
        make_display: Function that makes the display of progress.
        members: The runs, by id.
        workspaces: Workspaces of the runs that this process computes, by id.
        logs: Logs of the runs, by id.
        failed: The failed runs.
        costs: The costs of a finished run, by its number of completed rounds; runs of a bundle with
            equal numbers have equal costs.
    """

    def __init__(
        self,
        bundle: Bundle,
        leave_request: LeaveRequest,
        lockstep: Lockstep,
        make_display: MakeDisplay,
    ) -> None:
        self.bundle, self.leave_request, self.lockstep = bundle, leave_request, lockstep
        self.make_display = make_display
        self.members: dict[str, Member] = {member.run: member for member in bundle.runs}
        self.workspaces: dict[str, Workspace] = {}
        self.logs = {run: RunLog(Path(bundle.results), run) for run in self.members}
        self.failed: list[Failure] = []
        self.costs: dict[int, Costs | UnknownCosts] = {}
        self._logged_tracebacks: set[str] = set()

    def name(self, run: str) -> str:
        """Return a run's name for messages."""
        return f"{run} ({self.bundle.title}, seed {self.members[run].seed})"

    @contextlib.contextmanager
    def record_failure(self, *runs: str) -> Iterator[None]:
        """Record an error within the context as the failure of some runs.

        Args:
            runs: Ids of the runs.

        Raises:
            Interruption: If the job was asked to leave before the error.
        """
        try:
            yield
        except Exception as error:
            # Ctrl-C also ends a compiler, which is no failure of the run.
            self.leave_request.check("at an error; the last checkpoint is kept")
            text = describe_error(error)
            for run in runs:
                self.failed.append(Failure(self.name(run), text))
                self.logs[run].end("failed", error=text)
                if run in self.workspaces:
                    self.workspaces[run].note(ended="error", error=text)
            names = ", ".join(map(self.name, runs))
            if is_expected(error):
                logger.error("%s: %s", names, text)
            else:
                self._log_traceback(names, traceback.format_exc())

    def _log_traceback(self, names: str, trace: str) -> None:
        """Log a traceback, once for all runs that the same error ended."""
        if trace in self._logged_tracebacks:
            logger.error("%s failed with the same error", names)
        else:
            logger.error("%s failed:\n%s", names, trace)
        self._logged_tracebacks.add(trace)

    def curve_target(self, run: str) -> CurveTarget:
        """Return the run to which curves in other programs belong."""
        title = re.sub(r"[^\w.=()-]+", "-", self.bundle.title)[:100]
        logs = Path(self.bundle.results) / "logs"
        return CurveTarget(run, title, self.members[run].seed, logs)
