"""One line about the whole plan while Snakemake runs, printed when it has changed."""

from __future__ import annotations

import atexit
import logging
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fl.base.errors import EXIT_INTERRUPTED, FedloomError
from fl.plan.bundle import Bundle
from fl.plan.estimate import Rates
from fl.store.store import Store
from fl.workflow import status

log = logging.getLogger(__name__)


def say(text: str) -> None:
    """Print a line to the terminal, between those of Snakemake."""
    print(text, file=sys.stderr, flush=True)


class Watch(threading.Thread):
    """Looks at the store every ``pause`` seconds, after some hours every minute.

    It prints a line if a run has begun or ended, and otherwise every five minutes. It is a daemon
    thread, so that it never keeps a process alive.

    The costs of runs are read less often, as that reads the records of all runs: at most a
    twentieth of the time is spent on it.
    """

    def __init__(
        self, settings: Mapping[str, Any], say: Callable[[str], None] = say, pause: float = 10.0
    ) -> None:
        super().__init__(daemon=True)
        self._results, self._store = Path(settings["results"]), Store(Path(settings["store"]))
        self._say, self._pause, self._over = say, pause, threading.Event()
        self._seen: Counter[str] | None = None
        self._told = self._due = 0.0

    def run(self) -> None:
        """Look until `stop`, and then once more."""
        bundles, begun = status.bundles(self._results), time.monotonic()
        while True:
            late = (time.monotonic() - begun) / 60
            over = self._over.wait(max(self._pause, min(late, 60.0)))
            try:
                self._look(bundles)
            except (OSError, FedloomError) as error:
                log.debug("the store cannot be looked at now: %s", error)
            if over:
                return

    def _look(self, bundles: list[Bundle]) -> None:
        begun = time.monotonic()
        if begun >= self._due:
            self._rates = Rates(self._store)
            self._due = time.monotonic() + 20 * (time.monotonic() - begun)
        standings = status.look(bundles, self._store)
        seen = Counter(standing.state for standing in standings)
        if seen != self._seen or begun - self._told > 300:
            self._seen, self._told = seen, begun
            self._say(status.line(standings, self._rates))

    def stop(self) -> None:
        """Print a last line."""
        self._over.set()
        if self.is_alive():
            self.join()


def say_at_the_end(settings: Mapping[str, Any], say: Callable[[str], None] = say) -> None:
    """Say which runs are not done, and why: after all that Snakemake has to say."""
    results, store = Path(settings["results"]), Store(Path(settings["store"]))

    def summary() -> None:
        say("Some jobs failed.")
        try:
            for line in status.unfinished(status.look(status.bundles(results), store)):
                say(line)
        except (OSError, FedloomError) as error:
            say(f"  {error}")
        say(
            f"The reports in {results}/report show what is there; what is finished or in a "
            "checkpoint is kept, and snakemake goes on from there."
        )

    atexit.register(summary)


class Stop:
    """Ctrl-C, which a terminal sends to Snakemake and to its jobs alike: one sentence.

    What ``logger`` would tell the terminal from then on is about the jobs that Ctrl-C ended; its
    files have it. Jobs save their state and leave, after another Ctrl-C at once.
    """

    def __init__(self, logger: logging.Logger, say: Callable[[str], None] = say) -> None:
        self.asked = False
        self._logger, self._say = logger, say

    def listen(self) -> None:
        """Be asked from now on, unless this process is to know nothing of Ctrl-C."""
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: object) -> None:
        if self.asked:
            return
        self.asked = True
        for handler in self._logger.handlers:
            if not isinstance(handler, logging.FileHandler):
                handler.addFilter(lambda record: False)
        self._say(
            "Stopping: jobs save their state, up to a round later (Ctrl-C again: at once); "
            "what is finished or saved is kept, and the same command goes on from there."
        )
        sys.exit(EXIT_INTERRUPTED)
