"""What each of several runs that are trained together is said to have taken."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from fl.engine.simulate import Round
from fl.store import checkpoint
from fl.train.stack import Stack


class Clock:
    """Stands in for the time of the machine."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("fl.train.stack.time", found)
    return found


PLAIN: Any = SimpleNamespace(
    arrays=SimpleNamespace(device="cpu"),
    held=SimpleNamespace(modality=None),
    method=SimpleNamespace(modals=()),
)
"""Of a simulation what a checkpoint needs."""


def begun(clock: Clock, *runs: str) -> Stack:
    """Runs whose work is of no concern here."""
    state: Any = SimpleNamespace(server={}, clients={})
    rows = pd.DataFrame({"round": [0]})
    states, tables = dict.fromkeys(runs, state), dict.fromkeys(runs, rows)
    return Stack(dict.fromkeys(runs, PLAIN), list(runs), states, tables, "stacked", since=clock.now)


def later(clock: Clock, one: Stack, seconds: float, diverged: str = "") -> None:
    """A round of that length."""
    clock.now += seconds
    number = one.round + 1
    one.add(
        {
            run: Round(number, state, one.rows[run], 0.0, "as asked" if run == diverged else "")
            for run, state in one.states.items()
        }
    )


def test_shares_of_a_stack_add_up_to_its_time_though_a_run_leaves_it(clock: Clock) -> None:
    stack = begun(clock, "a", "b", "c")
    later(clock, stack, 6.0, diverged="b")
    later(clock, stack, 6.0)
    assert stack.seconds == {"a": 5.0, "b": 2.0, "c": 5.0}


@pytest.mark.parametrize(
    ("told", "kept"), [({"a": 5.0, "b": 2.0}, {"a": 5.0, "b": 2.0}), (8.0, {"a": 4.0, "b": 4.0})]
)
def test_what_was_taken_before_a_resume_counts(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Any, kept: Any
) -> None:
    stack = begun(clock, "a", "b")
    if isinstance(told, float):  # As it was written before runs had shares of their own.
        monkeypatch.setattr(Stack, "_share", lambda self: None)
        stack.seconds = told  # type: ignore[assignment]
    else:
        stack.seconds = {"a": 3.0, "b": 0.0}
        clock.now += 4.0
    stack.save(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr("fl.train.stack.time", clock)
    saved = checkpoint.load_latest(tmp_path)
    assert saved is not None
    again = Stack.resume(saved, {"a": PLAIN, "b": PLAIN})
    again.since = clock.now
    assert again.seconds == kept
    later(clock, again, 2.0)
    assert again.seconds == {run: seconds + 1.0 for run, seconds in kept.items()}
