"""Progress line while Snakemake runs, list of unfinished runs at its end, and Ctrl-C."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

from fl.base.errors import EXIT_INTERRUPTED, FedloomError
from fl.plan import continuation
from fl.plan.bundle import Bundle
from fl.plan.config import Settings
from fl.store.store import Store
from fl.workflow import sbatch, status, submission
from fl.workflow.estimate import LatestRates

log = logging.getLogger(__name__)


TERMINAL_VARIABLE = "FEDLOOM_TERMINAL"
"""Environment variable with a file descriptor of the terminal, if `fedloom run` sends the lines of
Snakemake to a log.
"""
# Only this process has the descriptor, so that its jobs should not see the variable.
_terminal = os.environ.pop(TERMINAL_VARIABLE, "")


def print_line(text: str) -> None:
    """Print a line between the lines of Snakemake, and to the terminal if those go to a log."""
    print(text, file=sys.stderr, flush=True)
    if _terminal:
        with contextlib.suppress(OSError):  # A closed terminal stops no training.
            os.write(int(_terminal), f"{text}\n".encode())


FAILED = "Some jobs failed."
"""First line of the list of unfinished runs."""


class ProgressMonitor(threading.Thread):
    """Thread that reads the store every ``pause`` seconds, and every minute after some hours.

    It prints a line if a run has started or ended, and otherwise every five minutes. It is a daemon
    thread, so that it never keeps a process alive.

    Speeds of runs are read less often, because that reads the records of all runs.
    """

    def __init__(
        self,
        settings: Settings,
        output: Callable[[str], None] = print_line,
        pause: float = 10.0,
        stop_workflow: Callable[[str], None] | None = None,
        selected: Collection[str] | None = None,
    ) -> None:
        """Prepare the thread.

        Args:
            settings: Settings of the plan.
            output: Function that prints a line.
            pause: Seconds between two looks.
            stop_workflow: Function that stops Snakemake for a reason, if no job can begin.
            selected: Runs that are counted (`fl.workflow.markers.selected_runs`); None: all of the
                plan.
        """
        super().__init__(daemon=True)
        self._results, self._store = Path(settings.results), Store(Path(settings.store))
        self._selected = selected
        self._output, self._pause, self._end = output, pause, threading.Event()
        self._last_counts: Counter[str] | None = None
        self._last_line_time, self._rates = 0.0, LatestRates(self._store)
        self._stop_workflow, self._start, self._message = stop_workflow, time.time(), ""

    def run(self) -> None:
        """Print progress until `stop`, and then once more."""
        bundles, start = status.bundles(self._results, selected=self._selected), time.monotonic()
        for line in continuation.training_lines(bundles, self._store):
            self._output(line)
        while True:
            hours = (time.monotonic() - start) / 60
            has_ended = self._end.wait(max(self._pause, min(hours, 60.0)))
            try:
                self._print_progress(bundles)
                self._look_at_submissions()
            except (OSError, FedloomError) as error:
                log.debug("the store cannot be read now: %s", error)
            if has_ended:
                return

    def _print_progress(self, bundles: list[Bundle]) -> None:
        start = time.monotonic()
        rates = self._rates.read()
        statuses = status.run_statuses(bundles, self._store)
        counts = Counter(run_status.state for run_status in statuses)
        if self._last_counts not in (None, counts):
            self._stop_workflow = None  # A run has begun, so that jobs can begin.
        if counts != self._last_counts or start - self._last_line_time > 300:
            self._last_counts, self._last_line_time = counts, start
            self._output(status.line(statuses, rates))

    def _look_at_submissions(self) -> None:
        """Print that Slurm's queue is full; stop if all jobs end alike before they begin."""
        submissions = [s for _, s in submission.read_all(self._results) if s.time >= self._start]
        message = next((s.message for s in submissions if s.is_waiting), "")
        if message != self._message:
            self._message = message
            if message:
                self._output(f"Slurm takes no more jobs now; submissions wait: {message}")
        if self._stop_workflow is None or len(submissions) < submission.EQUAL_FAILURES:
            return
        if failure := submission.common_failure(self._results, self._store.root, self._start):
            self._stop_workflow(
                "Stopping: every job ended alike, without beginning a run. Of one of them: "
                f"{failure.note}{failure.details}"
            )
            self._stop_workflow = None

    def stop(self) -> None:
        """Print a last line."""
        self._end.set()
        if self.is_alive():
            self.join()


def print_failures_at_exit(
    settings: Settings,
    output: Callable[[str], None] = print_line,
    selected: Collection[str] | None = None,
) -> None:
    """List unfinished runs and reasons when the process exits, after the lines of Snakemake.

    Args:
        settings: Settings of the plan.
        output: Function that prints a line.
        selected: Runs that may be listed; None: all of the plan.
    """
    results, store = Path(settings.results), Store(Path(settings.store))

    def print_failures() -> None:
        output(FAILED)
        try:
            bundles = status.bundles(results, selected=selected)
            statuses = status.run_statuses(bundles, store, results)
            for line in status.unfinished_lines(statuses):
                output(line)
            if selected is None:  # With `--only`, no report is made again.
                for page in status.unfinished_reports(results, statuses):
                    output(f"The report {page} contains all finished runs.")
        except (OSError, FedloomError) as error:
            output(f"  {error}")
        output("Finished runs and checkpoints are kept; run the same command again to continue.")

    atexit.register(print_failures)


class InterruptHandler:
    """Handler of Ctrl-C, which a terminal sends to Snakemake and to its jobs.

    It prints one message. Later messages of ``logger`` are about jobs that Ctrl-C ended, so they go
    to its files only. Jobs save their state and exit; after a second Ctrl-C they exit at once.

    Attributes:
        was_interrupted: Whether Ctrl-C was pressed.
        shim: Folder of the program before `sbatch`, which then stops waiting.
    """

    def __init__(self, logger: logging.Logger, output: Callable[[str], None] = print_line) -> None:
        """Prepare the handler.

        Args:
            logger: Snakemake's logger.
            output: Function that prints a line.
        """
        self.was_interrupted = False
        self.shim: Path | None = None
        self._text = (
            "Stopping: jobs save their state after the current round (press Ctrl-C again to stop "
            "at once). Finished runs and saved states are kept; the same command continues."
        )
        self._logger, self._output = logger, output

    def stop_workflow(self, reason: str) -> None:
        """Stop as after Ctrl-C, but for another reason; any thread may call it."""
        self._text = reason
        os.kill(os.getpid(), signal.SIGUSR1)

    def install(self) -> None:
        """Handle Ctrl-C from now on, unless this process ignores it."""
        signal.signal(signal.SIGUSR1, self._handle)  # A process in the background ignores Ctrl-C.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._handle)

    def _handle(self, number: int, frame: object) -> None:
        if self.was_interrupted:
            return
        self.was_interrupted = True
        for handler in self._logger.handlers:
            if not isinstance(handler, logging.FileHandler):
                handler.addFilter(lambda record: False)
        if self.shim is not None:
            sbatch.stop(self.shim)
        self._output(self._text)
        sys.exit(EXIT_INTERRUPTED)
