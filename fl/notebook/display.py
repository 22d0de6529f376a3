"""Output in a notebook: pages, whole tables, a progress bar, warnings and short tracebacks."""

from __future__ import annotations

import functools
import html
import inspect
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd

from fl.base.errors import FedloomError, FedloomWarning

if TYPE_CHECKING:
    from fl.engine.simulate import Round


FRAME_HEIGHT = 640
"""Height in pixels of the frame of a page."""

PACKAGE = Path(__file__).parents[1]
"""Folder of Fedloom's code."""

Function = TypeVar("Function", bound=Callable[..., Any])


class Page(type(Path())):  # type: ignore[misc]
    """Path of an HTML page, which a notebook shows in a frame."""

    def _repr_html_(self) -> str | None:
        if not self.is_file():
            return None
        content = html.escape(self.read_text(encoding="utf-8"))
        style = f"width: 100%; height: {FRAME_HEIGHT}px; border: 1px solid #ddd"
        return (
            f'<iframe srcdoc="{content}" style="{style}" title="{html.escape(str(self))}"></iframe>'
        )


class WideTable(pd.DataFrame):
    """Table that is printed with all its columns, in blocks if they are wider than the terminal."""

    @property
    def _constructor(self) -> Callable[..., pd.DataFrame]:
        return WideTable

    def __repr__(self) -> str:
        width = shutil.get_terminal_size((120, 24)).columns
        rows: Any = pd.get_option("display.max_rows")
        return self.to_string(line_width=width, max_rows=rows)

    def _repr_html_(self) -> str:
        rows: Any = pd.get_option("display.max_rows")
        return self.to_html(max_rows=rows)


class ProgressBar:
    """Progress bar with a step for every round of a run."""

    def __init__(self, total: int, is_visible: bool) -> None:
        """Show the bar.

        Args:
            total: Number of rounds of all runs.
            is_visible: Whether to show a bar. In a log, where each state of a bar would be a line,
                it is never shown.
        """
        from tqdm.auto import tqdm

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
        self.show_round(*summary(finished))

    def show_round(self, number: int, loss: float, runs: int) -> None:
        """Show the round of that number of some runs, and the smallest of their losses."""
        self._bar.set_postfix_str(
            f"round {number} of {self._rounds}, loss {loss:.4f}", refresh=False
        )
        self._bar.update(runs * (number - self._last_round))
        self._last_round = number


def summary(finished: Mapping[str, Round]) -> tuple[int, float, int]:
    """Return the number of a round of some runs, the smallest of their losses, and their count."""
    number = next(iter(finished.values())).number
    return number, min(round_.loss for round_ in finished.values()), len(finished)


MEMORY_FILE = re.compile(
    r"(?:path=)?[^\s=:,(]*?(?:(frame)-[0-9a-f]{16}\.parquet|arrays/([\w-]+)-[0-9a-f]{16}\.npz)"
)
"""The file of data in memory, of which the user knows nothing, in texts."""


def name_arguments(text: str) -> str:
    """Return a text with the argument's name in place of such files: frame, or that of arrays."""
    return MEMORY_FILE.sub(lambda match: str(match[1] or match[2]), text)


def warn(text: str) -> None:
    """Warn the user, at the line of the user's code that called a function of Fedloom."""
    frame, level = inspect.currentframe(), 1
    while frame and Path(frame.f_code.co_filename).is_relative_to(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(name_arguments(text), FedloomWarning, stacklevel=level)


def short_traceback(function: Function) -> Function:
    """Return the function, whose `FedloomError` has no traceback of the calls inside it."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except FedloomError as error:
            error.args = (name_arguments(str(error)),)
            raise error.with_traceback(None) from None

    return wrapper  # type: ignore[return-value]
