"""The progress of a run: one line that is rewritten on a terminal, plain lines in a log.

No library does both: tqdm writes its line into a log over and over, rich nothing before the end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fl.engine.simulate import Round

WIDTH = 24
PATIENCE = 30.0
"""Seconds after which a log gets a line, where a tenth of the rounds takes longer."""


class Shown(Protocol):
    """What shows the progress of runs that are trained together."""

    def show(self, finished: Mapping[str, Round]) -> None:
        """After a round of some runs, by id."""


Showing = Callable[[str, int, int], Shown]
"""(title, rounds, rounds done) -> what shows the rest."""


class Progress:
    """Rounds done, loss and rate of one run.

    On a terminal the line is rewritten in place; elsewhere a line is printed at every tenth of the
    rounds, and at least every `PATIENCE` seconds.
    """

    def __init__(self, title: str, total: int, done: int) -> None:
        self._title, self._total, self._first = title, total, done
        self._begun = self._told = time.monotonic()

    def show(self, finished: Mapping[str, Round]) -> None:
        """After a round of some runs, by id."""
        done = next(iter(finished.values())).number
        loss = min(round_.loss for round_ in finished.values())
        now = time.monotonic()
        rate = (done - self._first) / max(now - self._begun, 1e-9)
        text = f"round {done}/{self._total}  loss {loss:.4f}  {rate:.2f} rounds/s"
        tenth = done % max(1, self._total // 10) == 0 or done == self._total
        if sys.stderr.isatty():
            filled = "█" * (WIDTH * done // self._total)
            end = "\n" if done == self._total else ""
            print(f"\r{self._title}  {filled:·<{WIDTH}}  {text}\033[K", end=end, file=sys.stderr)
        elif tenth or now - self._told >= PATIENCE:
            self._told = now
            print(f"{self._title}  {text}", file=sys.stderr)
        sys.stderr.flush()
