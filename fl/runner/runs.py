"""The runs of a bundle in a job: simulations, workspaces, failures, and what is shown and logged.

``<results>/logs/runs/<run>.jsonl`` has one line per event. It is only appended to, so it covers all
processes that worked on the run. Fedloom does not read it, so a failing disk stops no run.

Other programs get curves if the config lists them (`fl.runner.curves`).

The progress is one line that is rewritten on a terminal, and plain lines in a log. No library does
both: tqdm repeats its line in a log, and rich prints nothing before the end.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from fl.base import plugins
from fl.base.errors import DataError, FedloomError
from fl.base.schema import PERSONAL
from fl.base.units import first_of
from fl.engine.assembly import complete, train_on_images
from fl.engine.assembly import sibling as sibling_run
from fl.engine.simulate import Round
from fl.engine.simulation import Simulation, Trainable
from fl.plan.bundle import Bundle, Run
from fl.plan.run_spec import RunSpec
from fl.pytorch.memory import is_out_of_memory
from fl.runner.job_processes import LeaveRequest
from fl.store.run_record import Costs, UnknownCosts
from fl.store.store import Store
from fl.store.workspace import Workspace

if TYPE_CHECKING:
    from fl.runner.curves import Curves

logger = logging.getLogger(__name__)

JsonValue = str | int | float | bool | None

BAR_WIDTH = 24
LOG_INTERVAL = 30.0
"""Seconds after which a log gets a line, if a tenth of the rounds takes longer."""

MEMORY_ADVICE = (
    "lower batch_size, local_epochs, local_steps or a warm-up's steps, take a smaller model, say "
    "`execution: {backend: loop}`, which has one client's batch in memory at a time, or more memory"
)


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
        self._curves: Curves | None = None

    def begin(self, completed: int, backend: str, curves: Curves | None) -> None:
        """Log that a process starts or resumes the run.

        Args:
            completed: Number of completed rounds.
            backend: Name of the backend.
            curves: Programs that receive curves, if there are any.
        """
        self._curves = curves
        process: dict[str, JsonValue] = {"host": socket.gethostname(), "process": os.getpid()}
        if "SLURM_JOB_ID" in os.environ:
            process["slurm_job"] = os.environ["SLURM_JOB_ID"]
        self._write("begun", {"round": completed, **process, "backend": backend})

    def add_round(self, finished: Round) -> None:
        """Log a finished round."""
        self._write("round", {"round": finished.number, "loss": finished.loss})
        if self._curves:
            self._curves.add(finished.number, finished.rows)

    def end(self, event: str, **facts: JsonValue) -> None:
        """Log that the process has stopped working on the run.

        Args:
            event: ``finished``, ``left`` or ``failed``.
            facts: Further entries of the line.
        """
        self._write(event, facts)
        if self._curves:
            self._curves.close()
        self._curves = None

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
                logger.warning("%s: cannot be written (%s); the run continues", self._path, error)


class ProgressDisplay(Protocol):
    """Shows the progress of runs that are trained together."""

    def show(self, finished: Mapping[str, Round]) -> None:
        """Show that a round of some runs has finished; ``finished`` has them by id."""


MakeDisplay = Callable[[str, int, int], ProgressDisplay]
"""Function (title, rounds, completed rounds) -> display."""


class Progress:
    """Shows completed rounds, loss and speed of one run.

    On a terminal the line is rewritten in place. Elsewhere a line is printed at every tenth of the
    rounds, and at least every `LOG_INTERVAL` seconds.

    Args:
        title: Title of the runs.
        total: Number of rounds.
        completed: Number of completed rounds.
    """

    def __init__(self, title: str, total: int, completed: int) -> None:
        self._title, self._total, self._completed_before = title, total, completed
        self._begin_time = self._last_line_time = time.monotonic()

    def show(self, finished: Mapping[str, Round]) -> None:
        """Show that a round of some runs has finished; ``finished`` has them by id."""
        completed = next(iter(finished.values())).number
        loss = min(round_.loss for round_ in finished.values())
        current_time = time.monotonic()
        seconds = max(current_time - self._begin_time, 1e-9)
        rate = (completed - self._completed_before) / seconds
        text = f"round {completed}/{self._total}  loss {loss:.4f}  {rate:.2f} rounds/s"
        is_tenth = completed % max(1, self._total // 10) == 0 or completed == self._total
        if sys.stderr.isatty():
            filled = "█" * (BAR_WIDTH * completed // self._total)
            end = "\n" if completed == self._total else ""
            line = f"\r{self._title}  {filled:·<{BAR_WIDTH}}  {text}\033[K"
            print(line, end=end, file=sys.stderr)
        elif is_tenth or current_time - self._last_line_time >= LOG_INTERVAL:
            self._last_line_time = current_time
            print(f"{self._title}  {text}", file=sys.stderr)
        sys.stderr.flush()


def is_expected(error: Exception) -> bool:
    """Whether the text of an error is enough, so that it needs no traceback."""
    return is_out_of_memory(error) or isinstance(error, FedloomError)


def describe_error(error: Exception) -> str:
    """Describe an error that ends a run in one line; if memory ran out, with advice."""
    if is_out_of_memory(error):
        [reason, *_] = str(error).strip().splitlines() or [type(error).__name__]
        return f"memory ran out ({reason}); {MEMORY_ADVICE}"
    return str(error) if is_expected(error) else plugins.describe(error)


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
        make_display: Function that makes the display of progress.
        members: The runs, by id.
        workspaces: Workspaces of the runs that this process computes, by id.
        logs: Logs of the runs, by id.
        failed: The failed runs.
        costs: The costs of a finished run, by its partition and number of completed rounds; runs
            of a bundle in which these are equal have equal costs.
    """

    def __init__(
        self,
        bundle: Bundle,
        leave_request: LeaveRequest,
        make_display: MakeDisplay,
    ) -> None:
        self.bundle, self.leave_request = bundle, leave_request
        self.make_display = make_display
        self.members: dict[str, Run] = {member.run: member for member in bundle.runs}
        self.workspaces: dict[str, Workspace] = {}
        self.logs = {run: RunLog(Path(bundle.results), run) for run in self.members}
        self.failed: list[Failure] = []
        self.costs: dict[tuple[str, int], Costs | UnknownCosts] = {}
        self._logged_tracebacks: set[str] = set()

    def name(self, run: str) -> str:
        """Return a run's name for messages."""
        draw = f", {self.members[run].draw}" if self.members[run].draw else ""
        return f"{run} ({self.bundle.title}{draw}, seed {self.members[run].seed})"

    def have_same_data(self, run: str, other: str) -> bool:
        """Whether two runs have the same data set and partition."""
        return self.members[run].partition_id == self.members[other].partition_id

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

    def curves(self, run: str, completed: int) -> Curves | None:
        """Open the programs that receive a run's curves after some completed rounds, if any."""
        programs = self.bundle.execution.log
        if not programs:
            return None
        from fl.runner.curves import Curves, CurveTarget

        title = re.sub(r"[^\w.=()-]+", "-", self.bundle.title)[:100]
        logs = Path(self.bundle.results) / "logs"
        return Curves(programs, CurveTarget(run, title, self.members[run].seed, logs), completed)


def make_simulation(
    bundle: Bundle, member: Run, sibling: Trainable | None, store: Store, device: torch.device
) -> Trainable:
    """Make the simulation of one run.

    Args:
        bundle: The bundle of the run.
        member: The run.
        sibling: The simulation of another run of the bundle, whose data are shared; None: none.
        store: The store, for runs that train on stored images.
        device: The device on which the run is trained.

    Returns:
        The simulation.
    """
    spec = member.spec
    if sibling is not None:
        return sibling_run(sibling, RunSpec(spec).method_components, member.seed)
    simulation = RunSpec(spec).assemble(bundle.folders, device)
    source = spec.get("train_on")
    if isinstance(source, str) and isinstance(simulation, Simulation):
        components = RunSpec(spec).method_components
        images = _read_images(store, source)
        return complete(train_on_images(simulation, images), components)
    return simulation


def _read_images(store: Store, run: str) -> torch.Tensor:
    """Read the stored images of every client, [clients, classes x count, ...]."""
    images = store.weights(run, torch.device("cpu")).get(PERSONAL, {}).get("images")
    if images is None:
        raise DataError(f"{store.folder(run)}: has no images to train on")
    return torch.as_tensor(images)
