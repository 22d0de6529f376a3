"""Progress bar over all runs of a call, in terminals and notebooks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

if TYPE_CHECKING:
    from fl.engine.simulate import Round


class ProgressBar:
    """Progress bar with a step for every round of a run."""

    def __init__(self, total: int, is_visible: bool) -> None:
        """Show the bar.

        Args:
            total: Number of rounds of all runs.
            is_visible: Whether to show a bar. In a log, where each state of a bar would be a line,
                it is never shown.
        """
        is_interactive = sys.stderr.isatty() or tqdm.__init__.__module__ == "tqdm.notebook"
        is_shown = is_visible and is_interactive
        self._bar: Any = tqdm(total=total, unit="round", disable=not is_shown)
        self._finished_rounds = 0

    def describe(self, text: str) -> None:
        """Show what is being done."""
        self._bar.set_description(text)

    def start_runs(self, title: str, rounds: int, finished: int) -> Rounds:
        """Show the rounds of runs that begin; see `fl.runner.runs.MakeDisplay`."""
        self.describe(title)
        return Rounds(self._bar, rounds)

    def add_rounds(self, rounds: int) -> None:
        """Count the rounds of runs that have ended, also early."""
        self._finished_rounds += rounds
        self._bar.n = self._finished_rounds
        self._bar.refresh()

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()


class Rounds:
    """Rounds of runs that are trained together, on the bar."""

    def __init__(self, bar: Any, rounds: int) -> None:
        """Begin before the first round.

        Args:
            bar: The bar of tqdm.
            rounds: Number of rounds of each run.
        """
        self._bar, self._rounds, self._last_round = bar, rounds, 0

    def show(self, finished: Mapping[str, Round]) -> None:
        """Show a round of some runs; the first one also counts earlier rounds of a checkpoint."""
        number = next(iter(finished.values())).number
        loss = min(round_.loss for round_ in finished.values())
        self._bar.set_postfix_str(
            f"round {number} of {self._rounds}, loss {loss:.4f}", refresh=False
        )
        self._bar.update(len(finished) * (number - self._last_round))
        self._last_round = number
