"""A progress bar over all runs of a call, in terminals and notebooks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

if TYPE_CHECKING:
    from fl.engine.simulate import Round


class Bar:
    """One bar: every round of a run is a step.

    Args:
        total: The rounds of all runs.
        shown: Whether there is anything to be seen; in a log, which keeps every state of a bar on
            a line of its own, there is not.
    """

    def __init__(self, total: int, shown: bool) -> None:
        seen = sys.stderr.isatty() or tqdm.__init__.__module__ == "tqdm.notebook"
        self._bar: Any = tqdm(total=total, unit="round", disable=not (shown and seen))
        self._done = 0

    def say(self, text: str) -> None:
        """What is being done."""
        self._bar.set_description(text)

    def showing(self, title: str, rounds: int, done: int) -> Rounds:
        """See `fl.runner.progress.Showing`."""
        self.say(title)
        return Rounds(self._bar)

    def passed(self, rounds: int) -> None:
        """Some runs are over, which would have had that many rounds."""
        self._done += rounds
        self._bar.n = self._done
        self._bar.refresh()

    def close(self) -> None:
        """Nothing more is shown."""
        self._bar.close()


class Rounds:
    """The rounds of runs that are trained together, on the bar."""

    def __init__(self, bar: Any) -> None:
        self._bar, self._last = bar, 0

    def show(self, finished: Mapping[str, Round]) -> None:
        """After a round of some runs. The first one counts those before it, from a checkpoint."""
        number = next(iter(finished.values())).number
        loss = min(round_.loss for round_ in finished.values())
        self._bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
        self._bar.update(len(finished) * (number - self._last))
        self._last = number
