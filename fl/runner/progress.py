"""The progress of runs: one line that is rewritten on a terminal, plain lines in a log.

No library does both: tqdm repeats its line in a log, and rich prints nothing before the end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fl.engine.simulate import Round

BAR_WIDTH = 24
LOG_INTERVAL = 30.0
"""Seconds after which a log gets a line, if a tenth of the rounds takes longer."""


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
