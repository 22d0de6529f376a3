"""One line about the whole plan, again whenever it has changed, while Snakemake runs."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fl import status
from fl.cost import Rates
from fl.errors import FedloomError
from fl.store import Store

log = logging.getLogger(__name__)


def say(text: str) -> None:
    """Print a line to the terminal, beside what Snakemake says."""
    print(text, file=sys.stderr, flush=True)


class Watch(threading.Thread):
    """Looks every ``pause`` seconds; a daemon, so that it never keeps a process alive.

    What runs cost is asked for more seldom, as that reads the records of all runs: at most a
    twentieth of the time is spent on it.
    """

    def __init__(
        self, settings: Mapping[str, Any], say: Callable[[str], None] = say, pause: float = 10.0
    ) -> None:
        super().__init__(daemon=True)
        self._results, self._store = Path(settings["results"]), Store(Path(settings["store"]))
        self._say, self._pause, self._over = say, pause, threading.Event()
        self._last, self._due = "", 0.0

    def run(self) -> None:
        """Look until `stop`, and once more then."""
        bundles = status.bundles(self._results)
        while True:
            over = self._over.wait(self._pause)
            try:
                self._look(bundles)
            except (OSError, FedloomError) as error:
                log.debug("the store cannot be looked at now: %s", error)
            if over:
                return

    def _look(self, bundles: list[dict[str, Any]]) -> None:
        begun = time.monotonic()
        if begun >= self._due:
            self._rates = Rates(self._store)
            self._due = time.monotonic() + 20 * (time.monotonic() - begun)
        found = status.line(status.look(bundles, self._store), self._rates)
        if found != self._last:
            self._last = found
            self._say(found)

    def stop(self) -> None:
        """Say where it ended."""
        self._over.set()
        if self.is_alive():
            self.join()
